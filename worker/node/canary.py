"""The canary: a message that a node sends to itself, through its own queue and pool.

A canary that comes back shows that the node still takes messages. An idle node whose canary does not come back restarts
itself.
"""

from __future__ import annotations

import fcntl
import logging
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from kombu.exceptions import KombuError

from footplate.contract import redis_keys
from footplate.contract.host.linux import try_lock
from worker.celery_app import app, queue_of
from worker.identity import Node
from worker.redis_client import REDIS_ERRORS

log = logging.getLogger("footplate.worker")

CANARY_BEATS = 3
"""The number of heartbeats after which the next canary is sent, if the last one has come back."""
LOST_BEATS, LOST_SECONDS = 8, 4.0
"""A canary that is out for this number of heartbeats, and for this time, means that the node takes no messages."""
RESTART_BEATS, RESTART_SECONDS = 30, 8.0
"""An idle node restarts if no canary has come back for this number of heartbeats, and for this time."""


class Canary:
    """Sends the canaries, and records when the last one came back."""

    def __init__(self, node: Node, beat_seconds: float) -> None:
        self._node = node
        self._every = CANARY_BEATS * beat_seconds
        self._lost_after = max(LOST_BEATS * beat_seconds, LOST_SECONDS)
        self._restart_after = max(RESTART_BEATS * beat_seconds, RESTART_SECONDS)
        self._sent = 0
        self._sent_at = 0.0
        self._back_at = time.monotonic()

    def record(self, number: int) -> None:
        """Records the number of the newest canary that came back, and sends the next canary when it is due."""
        now, is_back = time.monotonic(), number >= self._sent
        if is_back:
            self._back_at = now
        # A canary that does not come back was lost with the data of Redis, or this node takes no messages.
        if now - self._sent_at >= (self._every if is_back else self._lost_after):
            self._send(now)

    def is_back(self) -> bool:
        return time.monotonic() - self._back_at < self._lost_after

    def is_overdue(self) -> bool:
        return time.monotonic() - self._back_at > self._restart_after

    def reset_clock(self) -> None:
        """Restarts the canary's clock, because no canary can come back while Redis does not answer."""
        self._back_at = time.monotonic()
        self._sent_at = 0.0

    def _send(self, now: float) -> None:
        self._sent += 1
        self._sent_at = now
        # A new connection declares the queue again, because an emptied Redis has lost its binding.
        with suppress(KombuError, *REDIS_ERRORS), app.connection_for_write() as connection:
            options: dict[str, Any] = {"queue": queue_of(self._node.id), "connection": connection, "retry": False}
            app.send_task(redis_keys.CANARY_TASK, kwargs={"number": self._sent}, expires=60, **options)


@contextmanager
def no_restart(node: Node) -> Iterator[None]:
    """Prevents a restart of the node in the `with` block.

    A pool process claims an attempt inside the block, because a restart before the grant arrives would lose the grant.
    """
    with _opened_lock(node) as lock:
        fcntl.flock(lock, fcntl.LOCK_SH)
        yield


def restart_if_idle(node: Node) -> None:
    """Replaces this process by a new start of the node, unless a pool process claims or runs an attempt.

    The pool processes die when the thread that forked them ends, which is before this lock is released.
    """
    # If the restart fails, for example because Python was replaced, the lock is released, so that claims do not wait.
    with _opened_lock(node) as lock:
        if try_lock(lock):
            log.error("this node is idle, but does not receive its test messages through Celery, so it restarts")
            os.execv(sys.executable, sys.orig_argv)


@contextmanager
def _opened_lock(node: Node) -> Iterator[int]:
    lock = os.open(node.folder.attempts, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        yield lock
    finally:
        os.close(lock)
