"""The positions of a reader that follows many jobs on one connection. `follow.follow` reads the events."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from footplate.contract.events import Event
from footplate.sdk.follow import EventPosition, read_event

MOST_NAMED = 150
"""The number of jobs whose positions fit into an address. If there are more, those with the most events are named.
The events of the others are sent again after a reconnection, and are skipped by the client."""
MOST_REMEMBERED = 10_000


@dataclass
class EventPositions(EventPosition):
    """The positions in the histories of many jobs. Each job has its own, in `cursors` instead of `after`."""

    cursors: dict[str, int] = field(default_factory=dict)
    """The last `no` of each job that has not ended."""
    filters: dict[str, Any] = field(default_factory=dict)
    """The filters, as query parameters. A filter that is None is not sent."""
    follows_more: bool = False
    """True if jobs can join by a filter, so that the stream has no end."""
    since: str | None = None
    ended: dict[str, int] = field(default_factory=dict)

    @property
    def params(self) -> dict[str, Any]:
        positions = sorted(self.cursors.items(), key=lambda item: -item[1])[:MOST_NAMED]
        jobs = ",".join(f"{job}:{no}" if no else job for job, no in positions)
        return {"jobs": jobs or None, **self.filters, "since": self.since or None}

    def take(self, frame: dict[str, Any]) -> Iterator[Event]:
        """Yields a frame's events that are new to this reader and of a kind that this client knows."""
        self.since = frame.get("since", self.since)
        if (job := frame.get("job")) is None:
            return
        last_no = self.cursors.get(job, self.ended.get(job, 0))
        for row in frame.get("events", ()):
            if row["no"] <= last_no:
                continue
            last_no = self._advance(job, row["no"])
            if event := read_event(row):
                yield event
        last_no = max(last_no, frame.get("caught_up", 0), frame.get("last", 0))
        if "end" in frame:
            self._finish(job, last_no)
        elif last_no > self.ended.get(job, 0):
            self._advance(job, last_no)

    def _advance(self, job: str, no: int) -> int:
        """Stores the position after a new event. The job counts as running again, because it may have been resumed."""
        self.ended.pop(job, None)
        self.cursors[job] = no
        return no

    def _finish(self, job: str, last_no: int) -> None:
        self.cursors.pop(job, None)
        self.ended[job] = last_no
        if len(self.ended) > MOST_REMEMBERED:
            del self.ended[next(iter(self.ended))]
        if not (self.follows_more or self.cursors):
            self.end = "all"
