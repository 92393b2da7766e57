"""Logs a repeated error at once, then less and less often, and once more when the errors have ended.

A loop may retry every second during a long outage, and its log lines must not fill the disk.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass

FIRST_SECONDS, LONGEST_SECONDS = 60.0, 3600.0
"""The wait between the first two logs of an error, and the longest wait. The wait doubles with each log."""
WELL_SECONDS = 10.0
"""The time without an error after which an outage has ended. Some errors come only at every other try."""


@dataclass(slots=True)
class _Outage:
    since: float
    next_log_at: float
    wait: float = FIRST_SECONDS
    count: int = 1


class ErrorLog:
    """Logs the errors of one loop that runs in one thread."""

    def __init__(self, log: logging.Logger, who: str) -> None:
        self._log, self._who = log, who
        self._outages: dict[str, _Outage] = {}
        self._failed_at = 0.0

    def failed(self, sentence: str, *details: object, trace: bool = False) -> None:
        """Logs that one turn of the loop failed, unless the same error was logged a short time ago.

        `sentence` is a %-format for `details`. Errors with the same format are the same. With `trace` the first log has
        a traceback.
        """
        now = self._failed_at = time.monotonic()
        outage = self._outages.get(sentence)
        if outage is None:
            self._outages[sentence] = _Outage(now, now + FIRST_SECONDS)
            self._log.warning(f"%s {sentence}", self._who, *details, exc_info=trace)
            return
        outage.count += 1
        if now >= outage.next_log_at:
            outage.wait = min(outage.wait * 2, LONGEST_SECONDS)
            outage.next_log_at = now + outage.wait
            self._log.warning(
                f"%s still {sentence} (for %.0f s, %d times)", self._who, *details, now - outage.since, outage.count
            )

    def went_well(self) -> None:
        """Logs the end of the outage after WELL_SECONDS without an error. Call this after each successful turn."""
        if self._outages and time.monotonic() - self._failed_at >= WELL_SECONDS:
            since = min(outage.since for outage in self._outages.values())
            self._log.info("%s works again, after %.0f s", self._who, self._failed_at - since)
            self._outages.clear()
