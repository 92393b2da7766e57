"""Measures the memory that a stage of a run takes on the host and on the GPU."""

from __future__ import annotations

import resource
from pathlib import Path

import torch


class Memory:
    """The memory of a stage in bytes, under Hugging Face's names. Without `is_measured`, nothing is measured."""

    def __init__(self, *, is_measured: bool) -> None:
        self._is_measured = is_measured
        self._cpu = self._gpu = 0

    def start(self) -> None:
        if self._is_measured:
            self._cpu = _resident()
            if torch.cuda.is_available():
                torch.cuda.reset_peak_memory_stats()
                self._gpu = torch.cuda.memory_allocated()

    def figures(self, stage: str) -> dict[str, int]:
        if not self._is_measured:
            return {}
        now, peak = _resident(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        figures = {f"{stage}_mem_cpu_alloc_delta": now - self._cpu, f"{stage}_mem_cpu_peaked_delta": max(0, peak - now)}
        if torch.cuda.is_available():
            allocated = torch.cuda.memory_allocated()
            figures[f"{stage}_mem_gpu_alloc_delta"] = allocated - self._gpu
            figures[f"{stage}_mem_gpu_peaked_delta"] = max(0, torch.cuda.max_memory_allocated() - allocated)
        return figures


def _resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
