"""A callback that sends over a thousand events per second, and records what it has sent.

    books = Books(system)
    system.submit(books.job())
    books.sent_count, books.close()

`System` registers it.
"""

from __future__ import annotations

import gc
import time
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from footplate.contract.events import Kind
from footplate.trainer.callbacks import TrainerCallback

if TYPE_CHECKING:
    from tests.support.system import JSON, System

RATE = 1250
"""Events per second of the wall clock, so that a late step sends more events."""


class Books:
    """The number of events that a chatter has sent, with one line per step in a file that Footplate does not use."""

    def __init__(self, system: System) -> None:
        self.folder = system.processes.folder / "books"
        self.folder.mkdir()

    def job(self, **changes: Any) -> JSON:
        """Returns the spec of a job that trains and sends events until `close`."""
        return {
            "model": "toy/mlp",
            "data": {"use": "toy/regression", "args": {"seconds_per_item": 0.002}},
            "callbacks": [{"use": "test/chatter", "args": {"books": str(self.folder)}}],
            "training": {"max_steps": 10**6, "per_device_train_batch_size": 4, "save_strategy": "no"},
            **changes,
        }

    @property
    def lines(self) -> list[tuple[float, int]]:
        """Returns the end of each step, and the number of events sent by then."""
        path = self.folder / "sent"
        whole = path.read_text().split("\n")[:-1] if path.exists() else []
        return [(float(at), int(count)) for at, count in map(str.split, whole)]

    @property
    def sent_count(self) -> int:
        return self.lines[-1][1] if self.lines else 0

    @property
    def rate(self) -> float:
        (began, _), (end, count) = self.lines[0], self.lines[-1]
        return count / (end - began)

    @property
    def longest_steps(self) -> list[float]:
        """Returns the durations of the two longest steps, the longest first."""
        return sorted((later - earlier for (earlier, _), (later, _) in pairwise(self.lines)), reverse=True)[:2]

    def close(self) -> None:
        """Ends training after its next step."""
        (self.folder / "enough").touch()


class Chatter(TrainerCallback):
    """Sends log events that are numbered from 1."""

    def __init__(self, books: str) -> None:
        self.folder = Path(books)

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        from footplate.runtime.emit import Emit

        # Every training process has exactly one `Emit`, but user code has no way to get it.
        self.event_socket = next(
            candidate for candidate in gc.get_objects() if isinstance(candidate, Emit)
        ).event_socket
        self.file = (self.folder / "sent").open("a", buffering=1)
        self.began, self.sent_count = time.monotonic(), 0

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        now = time.monotonic()
        for n in range(self.sent_count + 1, int((now - self.began) * RATE) + 1):
            self.event_socket.send(Kind.LOG, {"n": n}, state.global_step)
            self.sent_count = n
        self.file.write(f"{now} {self.sent_count}\n")
        if (self.folder / "enough").exists():
            control.should_training_stop = True
