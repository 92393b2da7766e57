"""A callback that measures time, installed as a plugin with an entry point of its own.

After each step it records the time, this thread's CPU time, and how much of both was spent on sending events so far.
"""

from __future__ import annotations

import time
from array import array
from functools import wraps
from pathlib import Path
from typing import Any

FILE = "clock.rows"
ROW = 4
"""The numbers of a row, in nanoseconds: wall clock, CPU time, wall time in `send`, CPU time in `send`."""
ENTRY_POINTS = "[footplate.callbacks]\nbench/clock = bench.clock:clock\n"


def install(folder: Path) -> None:
    """Writes an entry point into `folder`, which offers this callback as `bench/clock` once it is on PYTHONPATH."""
    info = folder / "footplate_bench-0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: footplate-bench\nVersion: 0\n")
    (info / "entry_points.txt").write_text(ENTRY_POINTS)


def read(path: Path) -> list[tuple[int, int, int, int]]:
    flat = array("q", path.read_bytes())
    return list(zip(*(flat[column::ROW] for column in range(ROW)), strict=True))


def clock() -> Any:
    """Records the end of each step in a file in the attempt's own folder."""
    from footplate.runtime.emit import EventSocket
    from footplate.trainer.callbacks import TrainerCallback

    spent = [0, 0]

    def timed(send: Any) -> Any:
        @wraps(send)
        def measured(*args: Any, **kwargs: Any) -> None:
            wall, cpu = time.perf_counter_ns(), time.thread_time_ns()
            send(*args, **kwargs)
            spent[0] += time.perf_counter_ns() - wall
            spent[1] += time.thread_time_ns() - cpu

        return measured

    class Clock(TrainerCallback):
        def __init__(self) -> None:
            self.rows, self.file = array("q"), open(FILE, "ab", buffering=0)  # noqa: SIM115

        def on_step_end(self, *args: Any, **kwargs: Any) -> None:
            self.rows.extend((time.time_ns(), time.thread_time_ns(), *spent))
            if len(self.rows) >= 512 * ROW:
                self.file.write(self.rows.tobytes())
                del self.rows[:]

        def on_train_end(self, *args: Any, **kwargs: Any) -> None:
            self.file.write(self.rows.tobytes())

    EventSocket.send = timed(EventSocket.send)  # type: ignore[method-assign]
    return Clock()
