"""Measures what a training process uses of its machine, for `system` events. GPUs are measured with NVML."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE_MB = os.sysconf("SC_PAGE_SIZE") / 1024**2


Process = tuple[int, str]
"""A pid and its start time, because another process may get the same pid later."""


class Usage:
    """Measures the CPU, memory and GPUs that a process and its children use, from one call of `look` to the next."""

    def __init__(self, pid: int, gpus: list[str]) -> None:
        self._pid, self._gpus = pid, gpus
        self._at, (self._seconds, _) = time.monotonic(), self._processes()

    def look(self) -> dict[str, Any]:
        """Returns CPU use in percent of one core, and resident memory, over the process and its children."""
        now, (seconds, memory_mb) = time.monotonic(), self._processes()
        # Counted per process, so that an ended process subtracts nothing, and a new one adds only its own time.
        used = sum(now_used - self._seconds.get(process, 0.0) for process, now_used in seconds.items())
        # The kernel counts in ticks, so an early look could see more than 100 % of each core.
        percent = min(used / max(now - self._at, 1e-3), os.cpu_count() or 1) * 100
        self._at, self._seconds = now, seconds
        data = {"cpu_percent": round(percent, 1), "memory_mb": round(memory_mb, 1), "processes": len(seconds)}
        return {**data, "gpus": seen} if (seen := _gpus(self._gpus)) else data

    def _processes(self) -> tuple[dict[Process, float], float]:
        """Returns the CPU seconds of each process, and the memory of all."""
        seconds: dict[Process, float] = {}
        memory = 0.0
        waiting = [self._pid]
        while waiting:
            pid = waiting.pop()
            with suppress(OSError, ValueError, IndexError):
                # The name before these fields may contain anything, but ends with the last parenthesis.
                fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
                seconds[pid, fields[19]] = (int(fields[11]) + int(fields[12])) / _TICKS
                memory += int(fields[21]) * _PAGE_MB
                waiting += map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())
        return seconds, memory


def _gpus(uuids: list[str]) -> list[dict[str, Any]]:
    if not uuids:
        return []
    try:
        import pynvml

        pynvml.nvmlInit()
    except Exception:
        # There is no NVML, or the GPUs are simulated.
        return []
    seen = []
    for uuid in uuids:
        with suppress(pynvml.NVMLError):
            handle = pynvml.nvmlDeviceGetHandleByUUID(uuid)
            memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
            rates = pynvml.nvmlDeviceGetUtilizationRates(handle)
            seen.append({"uuid": uuid, "percent": rates.gpu, "memory_mb": memory.used // 1024**2})
    pynvml.nvmlShutdown()
    return seen
