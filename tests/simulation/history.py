"""Checks the events of one job as a reader gets them: numbered without gaps, and each source's in order and once."""

from __future__ import annotations

import json
from typing import Any, Protocol

from footplate.contract.events import SERVICE_SOURCE, Kind

Said = list[tuple[str, dict[str, Any]]]
"""The kind and data of each event that training has sent."""


class Must(Protocol):
    def __call__(self, holds: bool, what: str, *args: object) -> None: ...


class History:
    def __init__(self, job: str, must: Must) -> None:
        self.job, self.must = job, must
        self.last_no = 0
        self._seqs: dict[tuple[int, int], int] = {}
        self._gaps: dict[tuple[int, int], list[tuple[int, int | None]]] = {}

    def read(self, no: int, attempt: int, source: int, seq: int, kind: str, data: str, sent_events: Said) -> None:
        self.must(no == self.last_no + 1, "event {} of {} follows {}", no, self.job, self.last_no)
        self.last_no = no
        if source != SERVICE_SOURCE:
            self._is_next(attempt, source, seq)
            self._is_true(attempt, seq, kind, data, sent_events)
        elif kind == Kind.GAP:
            gap = json.loads(data)
            self._gaps.setdefault((attempt, gap["source"]), []).append((gap["from"], gap["to"]))

    def is_gap(self, attempt: int, source: int, seq: int) -> bool:
        """Returns True if a gap names this event as missing."""
        declared = self._gaps.get((attempt, source), [])
        return any(first <= seq and (last is None or seq <= last) for first, last in declared)

    def _is_next(self, attempt: int, source: int, seq: int) -> None:
        last = self._seqs.get((attempt, source), 0)
        is_whole = all(self.is_gap(attempt, source, missing) for missing in range(last + 1, seq))
        what = "{} attempt {} source {}: seq {} follows {}"
        self.must(seq > last and is_whole, what, self.job, attempt, source, seq, last)
        self._seqs[attempt, source] = seq

    def _is_true(self, attempt: int, seq: int, kind: str, data: str, sent_events: Said) -> None:
        self.must(seq <= len(sent_events), "{} attempt {}: seq {} was never sent", self.job, attempt, seq)
        expected = sent_events[seq - 1]
        # The event of a worker that it runs is stored as a note if the job does not run any more.
        is_reworded = expected[0] == Kind.STATE and kind == Kind.NOTE
        what = "{} attempt {}: seq {} is {} {}, and was {}"
        self.must(
            is_reworded or (kind, json.loads(data)) == expected, what, self.job, attempt, seq, kind, data, expected
        )
