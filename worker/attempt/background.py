"""The base of an attempt's background work: its events, its failure, and the call that wakes the supervisor."""

from __future__ import annotations

import os
import threading
from contextlib import suppress
from queue import SimpleQueue
from typing import Any

from footplate.contract.events import Kind, now_text

FIRST_SECONDS, LONGEST_SECONDS = 0.5, 15.0
"""The first and the longest time between two tries at a store that does not answer. It doubles with each try."""

Event = dict[str, Any]


class Background:
    """Work in a thread of the supervisor. It writes to `wake` when `events` gets an event, and when all is done."""

    def __init__(self, wake: int) -> None:
        self.events: SimpleQueue[Event] = SimpleQueue()
        """Events to append to the journal."""
        self.failure: Exception | None = None
        """An error that a retry does not fix, such as a full disk of this node."""
        self._wake, self._is_closed = wake, False
        self._lock = threading.Lock()
        self._given_up = threading.Event()

    def close(self) -> None:
        self._given_up.set()
        with self._lock:
            self._is_closed = True

    def _report(self, kind: Kind, data: dict[str, Any], step: int | None = None) -> None:
        self.events.put({"kind": kind, "at": now_text(), "step": step, "data": data})
        self._ring()

    def _ring(self) -> None:
        # After `close` another file may have this descriptor's number.
        with self._lock, suppress(OSError):
            if not self._is_closed:
                os.eventfd_write(self._wake, 1)
