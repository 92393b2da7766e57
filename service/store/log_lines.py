"""Searches the lines that training printed, among all other events of a job."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass

from sqlalchemy import Connection, bindparam, select

from footplate.contract.events import Kind
from footplate.contract.ids import JobId
from service.store.tables import events

STRIDE = 10_000
"""The number of events that one statement reads."""
REACH = 200_000
"""The most events that one page reads. A search for rare lines gets empty pages, but delays no other request."""

_LINES = (
    select(events.c.no, events.c.at, events.c.attempt, events.c.rank, events.c.data)
    .where(events.c.job_id == bindparam("job_id"), events.c.kind == Kind.LINE)
    .where(events.c.no > bindparam("after_no"), events.c.no <= bindparam("to_no"))
    .order_by(events.c.no)
)


@dataclass(frozen=True, slots=True)
class LineRow:
    no: int
    at: str
    attempt: int
    rank: int
    stream: str
    text: str


@dataclass(frozen=True, slots=True)
class LineFilter:
    job: JobId
    stream: str | None = None
    rank: int | None = None
    grep: str | None = None

    def takes(self, row: LineRow) -> bool:
        return (
            self.stream in (None, row.stream)
            and self.rank in (None, row.rank)
            and (self.grep is None or self.grep in row.text)
        )


@dataclass(frozen=True, slots=True)
class LinePage:
    rows: list[LineRow]
    last: int
    """The number of the last event that was read."""
    has_more: bool


def page(conn: Connection, line_filter: LineFilter, after: int, limit: int, head: int) -> LinePage:
    """Returns the next matching lines after event `after`. Each query reads a range of event numbers.

    Event numbers have no gaps, so the length of the range limits the number of rows that a query reads.
    """
    rows: list[LineRow] = []
    last, reach = after, min(head, after + REACH)
    while last < reach:
        last, first = min(last + STRIDE, reach), last
        for row in filter(line_filter.takes, _between(conn, line_filter.job, first, last)):
            rows.append(row)
            if len(rows) == limit:
                return LinePage(rows, row.no, row.no < head)
    return LinePage(rows, last, last < head)


def _between(conn: Connection, job: JobId, after: int, to: int) -> Iterator[LineRow]:
    for row in conn.execute(_LINES, {"job_id": job, "after_no": after, "to_no": to}):
        # The faster parser refuses half a surrogate pair, which a printed line may hold.
        data = json.loads(row.data)
        yield LineRow(row.no, row.at, row.attempt, row.rank, str(data.get("stream", "")), str(data.get("text", "")))
