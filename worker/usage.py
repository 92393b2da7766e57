"""What a training process takes of its machine, for `system` events. From /proc; GPUs from NVML where it is there."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE_MB = os.sysconf("SC_PAGE_SIZE") / 1024**2


class Usage:
    """Between one look and the next."""

    def __init__(self, pid: int, gpus: list[str]) -> None:
        self._pid, self._gpus = pid, gpus
        self._cpu, self._at = 0.0, time.monotonic()

    def look(self) -> dict[str, Any]:
        """CPU in percent of one core, over the process and its children; resident memory of all of them."""
        seconds, memory_mb, count = self._processes()
        now = time.monotonic()
        percent = max(0.0, seconds - self._cpu) / max(now - self._at, 1e-3) * 100
        self._cpu, self._at = seconds, now
        data = {"cpu_percent": round(percent, 1), "memory_mb": round(memory_mb, 1), "processes": count}
        return {**data, "gpus": seen} if (seen := _gpus(self._gpus)) else data

    def _processes(self) -> tuple[float, float, int]:
        seconds = memory = 0.0
        count = 0
        waiting = [self._pid]
        while waiting:
            pid = waiting.pop()
            with suppress(OSError, ValueError, IndexError):
                # After the name, which may hold anything but ends with the last parenthesis.
                fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
                seconds += (int(fields[11]) + int(fields[12])) / _TICKS
                memory += int(fields[21]) * _PAGE_MB
                count += 1
                waiting += map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())
        return seconds, memory, count


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
