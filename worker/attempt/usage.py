"""What a training process takes of its machine, for `system` events. From /proc; GPUs from NVML where it is there."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE_MB = os.sysconf("SC_PAGE_SIZE") / 1024**2


Process = tuple[int, str]
"""A number, which another process may have later, and when it was started."""


class Usage:
    """Between one look and the next; what was used before this was made counts for none."""

    def __init__(self, pid: int, gpus: list[str]) -> None:
        self._pid, self._gpus = pid, gpus
        self._at, (self._seconds, _) = time.monotonic(), self._processes()

    def look(self) -> dict[str, Any]:
        """CPU in percent of one core, over the process and its children; resident memory of all of them."""
        now, (seconds, memory_mb) = time.monotonic(), self._processes()
        # Each by itself: one that has ended takes nothing back, and one that is new brings only what is its own.
        used = sum(now_used - self._seconds.get(process, 0.0) for process, now_used in seconds.items())
        # Counted in ticks, so that a look that comes too soon could see more than there is.
        percent = min(used / max(now - self._at, 1e-3), os.cpu_count() or 1) * 100
        self._at, self._seconds = now, seconds
        data = {"cpu_percent": round(percent, 1), "memory_mb": round(memory_mb, 1), "processes": len(seconds)}
        return {**data, "gpus": seen} if (seen := _gpus(self._gpus)) else data

    def _processes(self) -> tuple[dict[Process, float], float]:
        """The CPU seconds of each, and the memory of all."""
        seconds: dict[Process, float] = {}
        memory = 0.0
        waiting = [self._pid]
        while waiting:
            pid = waiting.pop()
            with suppress(OSError, ValueError, IndexError):
                # After the name, which may hold anything but ends with the last parenthesis.
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
        # No NVML, or no GPU behind it: a simulated inventory.
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
