"""Many jobs on one connection: where a reader is in each of their histories, and what it comes back with.

`following.follow` reads them as it reads one job's.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

from footplate.contract.events import Event
from footplate.sdk.follow import SILENCE_SECONDS, read_event

MOST_NAMED = 150
"""What one address holds. Of more, those with the longest histories are named; the others are told again, and passed
over here."""
MOST_REMEMBERED = 10_000


class HasId(Protocol):
    @property
    def id(self) -> str: ...


@dataclass
class Places:
    """The same to `follow` as the Place of one job."""

    cursors: dict[str, int]
    """The last `no` of each job that has not ended."""
    asked: dict[str, str]
    """What else was asked for, as the address says it."""
    follows_more: bool
    """Jobs join by a filter: there is no end."""
    patience: float = 600.0
    since: str | None = None
    end: str | None = None
    over: dict[str, int] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        jobs: Collection[str | HasId] | None,
        *,
        tag: str | None,
        state: str | Collection[str] | None,
        kinds: str | Collection[str] | None,
        max_hz: int | None,
        patience: float,
    ) -> Places:
        told = {
            "tag": tag,
            "state": _text(state),
            "kinds": _text(kinds),
            "max_hz": None if max_hz is None else str(max_hz),
        }
        cursors = {one if isinstance(one, str) else one.id: 0 for one in jobs or ()}
        asked = {name: value for name, value in told.items() if value is not None}
        return cls(cursors, asked, jobs is None or tag is not None or state is not None, patience)

    @property
    def seconds_to_read(self) -> float:
        return SILENCE_SECONDS

    def check_deadline(self) -> None:
        """There is none."""

    @property
    def params(self) -> dict[str, Any]:
        longest = sorted(self.cursors.items(), key=lambda one: -one[1])[:MOST_NAMED]
        jobs = ",".join(f"{job}:{no}" if no else job for job, no in longest)
        since = {"since": self.since} if self.since else {}
        return {**({"jobs": jobs} if jobs else {}), **self.asked, **since}

    def take(self, frame: dict[str, Any]) -> Iterator[Event]:
        """The events of a frame that are new to this reader and of a kind that it knows."""
        self.since = frame.get("since", self.since)
        if (job := frame.get("job")) is None:
            return
        last = self.cursors.get(job, self.over.get(job, 0))
        for told in frame.get("events", ()):
            if told["no"] <= last:
                continue
            last = self._reached(job, told["no"])
            if event := read_event(told):
                yield event
        last = max(last, frame.get("caught_up", 0), frame.get("last", 0))
        if "end" in frame:
            self._ended(job, last)
        elif last > self.over.get(job, 0):
            self._reached(job, last)

    def _reached(self, job: str, no: int) -> int:
        """It goes on, perhaps after an end: somebody has resumed it."""
        self.over.pop(job, None)
        self.cursors[job] = no
        return no

    def _ended(self, job: str, last: int) -> None:
        self.cursors.pop(job, None)
        self.over[job] = last
        if len(self.over) > MOST_REMEMBERED:
            del self.over[next(iter(self.over))]
        if not (self.follows_more or self.cursors):
            self.end = "all"


def _text(names: str | Collection[str] | None) -> str | None:
    return names if names is None or isinstance(names, str) else ",".join(names)
