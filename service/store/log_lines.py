"""Searches the lines that training printed, among all other events of a job."""

from __future__ import annotations

import json

from sqlalchemy import Connection, bindparam, select

from footplate.contract.events import Kind
from footplate.contract.ids import JobId
from footplate.contract.resources.history import Line, LineList
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


def page(
    conn: Connection, job: JobId, head: int, after: int, limit: int, *, stream: str | None, rank: int | None,
    grep: str | None,
) -> LineList:  # fmt: skip
    """Returns the next matching lines after event `after`. `head` is the number of the job's newest event.

    Each query reads a range of event numbers. They have no gaps, so the length of the range limits the number of rows
    that a query reads.
    """
    lines: list[Line] = []
    last, reach = after, min(head, after + REACH)
    while last < reach and len(lines) < limit:
        last, first = min(last + STRIDE, reach), last
        for row in conn.execute(_LINES, {"job_id": job, "after_no": first, "to_no": last}):
            # The faster parser refuses half a surrogate pair, which a printed line may hold.
            data = json.loads(row.data)
            line_stream, text = str(data.get("stream", "")), str(data.get("text", ""))
            if stream in (None, line_stream) and rank in (None, row.rank) and (grep is None or grep in text):
                # Half a surrogate pair cannot be written as UTF-8.
                text = text.encode("utf-8", "replace").decode()
                lines.append(
                    Line(no=row.no, at=row.at, attempt=row.attempt, rank=row.rank, stream=line_stream, text=text)
                )
                if len(lines) == limit:
                    last = row.no
                    break
    return LineList(data=tuple(lines), next_cursor=str(last) if last < head else None, last=last)
