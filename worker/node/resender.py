"""Reads a node's folder of journals: finds the attempts that run, and sends the journals of dead attempts.

A supervisor has its journal locked. A journal without a lock belongs to a supervisor that was killed.
"""

from __future__ import annotations

import logging
import time
from contextlib import suppress
from pathlib import Path

import redis

from footplate.contract.messages import RunningAttempt
from worker.attempt.control_link import Sender
from worker.attempt.journal import SUFFIX, UNREADABLE, Journal, JournalName, is_owned

log = logging.getLogger("footplate.worker")

RESEND_AT_ONCE = 4
"""The most journals that are sent at the same time."""
KEEP_JOURNALS_SECONDS = 7 * 86400
REPORT_DEAD_SECONDS = 60.0
"""The time for which heartbeats name an attempt whose supervisor died, because a heartbeat may be lost."""


class Resender:
    """Sends the journals that dead supervisors have left, a few at a time."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.senders: dict[Path, Sender] = {}
        self._dead: list[tuple[float, RunningAttempt]] = []

    @property
    def unsent(self) -> int:
        """The number of events of dead attempts that SQL does not have."""
        return sum(sender.journal.last - sender.acknowledged for sender in self.senders.values())

    def dead(self) -> list[RunningAttempt]:
        """Returns the attempts whose supervisor died before it reported their end."""
        self._dead = [(at, attempt) for at, attempt in self._dead if time.monotonic() - at < REPORT_DEAD_SECONDS]
        return [attempt for _, attempt in self._dead]

    def running(self) -> list[RunningAttempt]:
        """Returns the attempts that run here. An attempt runs as long as its supervisor has its journal locked."""
        paths = [path for path in self._folder.glob(f"*{SUFFIX}") if path not in self.senders and is_owned(path)]
        return [name for path in paths if (name := JournalName.of(path))]

    def send(self, client: redis.Redis) -> bool:
        """Sends some events of each journal. Returns True if `dead` has a new attempt.

        An attempt is dead once all of its events have arrived, because they may include its last checkpoints.
        """
        self._take()
        dead_before = len(self._dead)
        for path, sender in list(self.senders.items()):
            sender.exchange(client)
            if sender.acknowledged >= sender.journal.last:
                text = "the service has all %d events of the journal %s, whose supervisor died"
                log.info(text, sender.journal.last, path.name)
                if not sender.journal.is_done:
                    self._dead.append((time.monotonic(), sender.journal.name))
                sender.journal.delete()
                del self.senders[path]
        return len(self._dead) > dead_before

    def _take(self) -> None:
        for path in self._folder.glob(f"*{UNREADABLE}"):
            _drop_if_old(path, "it cannot be read, and is seven days old")
        for path in self._folder.glob(f"*{SUFFIX}"):
            if len(self.senders) >= RESEND_AT_ONCE:
                return
            if path in self.senders or is_owned(path):
                continue
            # The supervisor of a journal may delete it between any two of these statements.
            with suppress(FileNotFoundError):
                if _drop_if_old(path, "control has not taken these events for seven days"):
                    continue
                if (journal := Journal.reopen(path)) is not None:
                    self.senders[path] = Sender(journal)


def _drop_if_old(path: Path, why: str) -> bool:
    is_old = time.time() - path.stat().st_mtime > KEEP_JOURNALS_SECONDS
    if is_old:
        log.error("the journal %s is deleted, with its events: %s", path.name, why)
        path.unlink()
    return is_old
