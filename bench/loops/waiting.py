"""Counts how often the host waits for the device in ten steps, the last of which is logged. A log waits once."""

from __future__ import annotations

import tempfile
from pathlib import Path

from torch.profiler import ProfilerActivity, profile

from bench.loops.filling import train, work
from bench.loops.race import Turn
from bench.loops.work import LOG_EVERY

WAITS = ("cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaEventSynchronize")


def run(loop: str, turn: Turn, *, compiles: bool, trace: str | None = None) -> None:
    """Counts in steps 11 to 20, after everything that is made only once. `trace` is a folder for chrome://tracing."""
    import torch

    kinds = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if torch.cuda.is_available() else [])]
    profiler = profile(activities=kinds)

    def mark(step: int, loss: float) -> None:
        if step == LOG_EVERY:
            profiler.start()
        if step == 2 * LOG_EVERY:
            profiler.stop()

    train(loop, work(), 2 * LOG_EVERY, mark, compiles=compiles)
    if trace is not None:
        Path(trace).mkdir(parents=True, exist_ok=True)
        profiler.export_chrome_trace(tempfile.mkstemp(".json.gz", f"{loop}-", trace)[1])
    turn(sum(event.count for event in profiler.key_averages() if event.key in WAITS))
