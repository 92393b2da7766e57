"""Measures the memory that a stage of a run takes on the host and on the GPU."""

from __future__ import annotations

import resource
from pathlib import Path

import torch


class MemoryMeter:
    """The memory of a stage in bytes, under Hugging Face's names. Without `is_measured`, nothing is measured.

    The stages are `init`, `train`, `eval` and `test`. A stage within another one, such as an evaluation in training,
    is not measured. The values of `init` are reported with those of the first stage after it.
    """

    def __init__(self, *, is_measured: bool) -> None:
        self._is_measured = is_measured
        self._stage: str | None = None
        self._cpu = self._gpu = 0
        self._of_init: dict[str, int] = {}

    def start(self, stage: str) -> None:
        if not self._is_measured or self._stage not in (None, stage):
            return
        self._stage, self._cpu = stage, _resident()
        if torch.cuda.is_available():
            torch.cuda.reset_peak_memory_stats()
            self._gpu = torch.cuda.memory_allocated()

    def end_init(self) -> None:
        """Ends the stage `init`, whose values the next stage reports."""
        if self._stage == "init":
            before = {"before_init_mem_cpu": self._cpu}
            if torch.cuda.is_available():
                before["before_init_mem_gpu"] = self._gpu
            self._of_init = {**self.figures("init"), **before}

    def figures(self, stage: str) -> dict[str, int]:
        """Ends the stage and returns its memory in bytes, or an empty dict if the stage was not measured."""
        if self._stage != stage:
            return {}
        self._stage = None
        resident, peak = _resident(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        figures = {
            f"{stage}_mem_cpu_alloc_delta": resident - self._cpu,
            f"{stage}_mem_cpu_peaked_delta": max(0, peak - resident),
        }
        if torch.cuda.is_available():
            allocated = torch.cuda.memory_allocated()
            figures[f"{stage}_mem_gpu_alloc_delta"] = allocated - self._gpu
            figures[f"{stage}_mem_gpu_peaked_delta"] = max(0, torch.cuda.max_memory_allocated() - allocated)
        of_init, self._of_init = self._of_init, {}
        return {**of_init, **figures}


def _resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
