"""What goes wrong again and again is said at once, then ever more rarely, and once more when it is over.

An outage may last a night, and what is tried again each second must not fill a disk with telling so.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass

FIRST_SECONDS, LONGEST_SECONDS = 60.0, 3600.0
"""Between a complaint and the next `still`; doubles with each."""
WELL_SECONDS = 10.0
"""What fails every other time is not over: it must have gone well for so long."""


@dataclass(slots=True)
class _Complaint:
    since: float
    say_at: float
    wait: float = FIRST_SECONDS
    count: int = 1


class Repeated:
    """The complaints of one loop, in a log: one thread at a time."""

    def __init__(self, log: logging.Logger, who: str) -> None:
        self._log, self._who = log, who
        self._known: dict[str, _Complaint] = {}
        self._failed_at = 0.0

    def failed(self, sentence: str, *details: object, trace: bool = False) -> None:
        """`sentence`, a format, tells one trouble from another. With `trace` the first comes with its traceback."""
        now = self._failed_at = time.monotonic()
        known = self._known.get(sentence)
        if known is None:
            self._known[sentence] = _Complaint(now, now + FIRST_SECONDS)
            self._log.warning(f"%s {sentence}", self._who, *details, exc_info=trace)
            return
        known.count += 1
        if now >= known.say_at:
            known.wait = min(known.wait * 2, LONGEST_SECONDS)
            known.say_at = now + known.wait
            self._log.warning(
                f"%s still {sentence} (for %.0f s, %d times)", self._who, *details, now - known.since, known.count
            )

    def went_well(self) -> None:
        """To be called after each turn that did; costs nothing where nothing was wrong."""
        if self._known and time.monotonic() - self._failed_at >= WELL_SECONDS:
            since = min(known.since for known in self._known.values())
            self._log.info("%s goes well again, after %.0f s", self._who, self._failed_at - since)
            self._known.clear()
