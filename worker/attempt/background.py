"""The base class of the supervisor's threads that copy files. They report with events, and wake the supervisor."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from queue import Queue, SimpleQueue
from typing import Any, TypeVar

from footplate.contract.bucket import StoreUnreachable
from footplate.contract.errors import AttemptError
from footplate.contract.events import Kind, now_text

log = logging.getLogger("footplate.worker")

FIRST_SECONDS, LONGEST_SECONDS = 0.5, 15.0
"""The first and the longest pause before a store or hub is tried again. The pause doubles each time."""

Event = dict[str, Any]
T = TypeVar("T")


class Background:
    """Runs tasks one after the other in a thread of the supervisor.

    Each new event and each end of a task make the eventfd `wake` readable.
    """

    def __init__(self, wake: int, name: str) -> None:
        self._name = name
        self.events: SimpleQueue[Event] = SimpleQueue()
        """Events to append to the journal."""
        self.failure: Exception | None = None
        """The error that ended the work. No retry would fix it, as with a full disk of this node."""
        self._wake, self._is_closed = wake, False
        self._lock = threading.Lock()
        self._given_up = threading.Event()
        self._tasks: Queue[Callable[[], object] | None] = Queue()
        self._thread: threading.Thread | None = None

    @property
    def is_idle(self) -> bool:
        return self._tasks.unfinished_tasks == 0

    def close(self) -> None:
        self._given_up.set()
        with self._lock:
            self._is_closed = True
        self._tasks.put(None)

    def _add(self, task: Callable[[], object]) -> None:
        self._tasks.put(task)
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            self._thread.start()

    def _run(self) -> None:
        while (task := self._tasks.get()) is not None:
            try:
                task()
            except Exception as error:
                self.failure = error
                # An AttemptError is not logged here, because the job shows it to its user.
                if not isinstance(error, AttemptError):
                    log.exception("%s failed", self._name)
            self._tasks.task_done()
            self._wake_supervisor()
        self._tasks.task_done()

    def _retry_while_unreachable(self, copy: str, do: Callable[[], T]) -> T | None:
        """Calls `do` until the artifact store answers, and returns its result. Returns None after `close`.

        `copy` names the copy in notes, such as "the download of file_1".
        """
        for away in self._tries():
            try:
                result = do()
            except StoreUnreachable as error:
                if not away:
                    self._note(
                        f"the artifact store does not answer, so this is retried: {copy}: {error}", code="store_away"
                    )
                continue
            if away:
                text = f"the artifact store answers again after {away:.0f} s; done: {copy}"
                self._note(text, code="store_back", seconds=round(away, 1))
            return result
        return None

    def _tries(self) -> Iterator[float]:
        """Yields 0 before the first try. Before each later one, yields the seconds since the first failure."""
        first_failure, pause = None, FIRST_SECONDS
        while not self._given_up.is_set():
            yield 0.0 if first_failure is None else time.monotonic() - first_failure
            first_failure = first_failure or time.monotonic()
            self._given_up.wait(pause)
            pause = min(2 * pause, LONGEST_SECONDS)

    def _note(self, message: str, **more: Any) -> None:
        self._report(Kind.NOTE, {"message": message, **more})

    def _report(self, kind: Kind, data: dict[str, Any], step: int | None = None) -> None:
        self.events.put({"kind": kind, "at": now_text(), "step": step, "data": data})
        self._wake_supervisor()

    def _wake_supervisor(self) -> None:
        # After `close` another file may have this descriptor's number.
        with self._lock, suppress(OSError):
            if not self._is_closed:
                os.eventfd_write(self._wake, 1)
