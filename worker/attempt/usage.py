"""Measures what a training process uses of its machine, for `system` events. GPUs are measured with NVML."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from typing import Any

import psutil


class Usage:
    """Measures the CPU, memory and GPUs that a process and its descendants use."""

    def __init__(self, pid: int, gpus: list[str]) -> None:
        self._pid, self._gpus = pid, gpus
        self._at, (self._seconds, _) = time.monotonic(), self._processes()

    def measure(self) -> dict[str, Any]:
        """Returns CPU use since the last call in percent of one core, resident memory, and the use of each GPU."""
        now, (seconds, memory_mb) = time.monotonic(), self._processes()
        # The differences are taken per process, so that a process that has ended does not make the sum negative.
        cpu_seconds = sum(new_seconds - self._seconds.get(process, 0.0) for process, new_seconds in seconds.items())
        # The kernel counts CPU time in ticks, so after a short interval the sum could exceed 100 % of all cores.
        percent = min(cpu_seconds / max(now - self._at, 1e-3), os.cpu_count() or 1) * 100
        self._at, self._seconds = now, seconds
        data = {"cpu_percent": round(percent, 1), "memory_mb": round(memory_mb, 1), "processes": len(seconds)}
        return {**data, "gpus": gpus} if (gpus := _gpus(self._gpus)) else data

    def _processes(self) -> tuple[dict[psutil.Process, float], float]:
        """Returns the CPU seconds of each process, and the memory of all processes in MiB."""
        seconds: dict[psutil.Process, float] = {}
        memory = 0
        with suppress(psutil.NoSuchProcess):
            root = psutil.Process(self._pid)
            for process in [root, *root.children(recursive=True)]:
                with suppress(psutil.Error), process.oneshot():
                    times = process.cpu_times()
                    seconds[process] = times.user + times.system
                    memory += process.memory_info().rss
        return seconds, memory / 2**20


def _gpus(uuids: list[str]) -> list[dict[str, Any]]:
    """Returns the use of each GPU. The list is empty if there is no NVML, or if the GPUs are simulated."""
    if not uuids:
        return []
    try:
        import pynvml

        pynvml.nvmlInit()
    except Exception:
        return []
    gpus = []
    for uuid in uuids:
        with suppress(pynvml.NVMLError):
            handle = pynvml.nvmlDeviceGetHandleByUUID(uuid)
            memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
            rates = pynvml.nvmlDeviceGetUtilizationRates(handle)
            gpus.append({"uuid": uuid, "percent": rates.gpu, "memory_mb": memory.used // 1024**2})
    pynvml.nvmlShutdown()
    return gpus
