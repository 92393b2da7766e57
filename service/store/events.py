"""Statements about events. A writer holds the job's lock, so `no` has no gaps and is in commit order."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from typing import Any

from sqlalchemy import Connection, bindparam, delete, insert, select, update

from footplate.contract.events import SERVICE_SOURCE, Kind
from footplate.contract.ids import JobId
from service.store.database import NewRow
from service.store.mapping import columns_of, values_of
from service.store.row_types import EventRow
from service.store.tables import dead_events, events, jobs
from service.store.times import text_of

_COLUMNS = columns_of(events, EventRow)
_INSERT = insert(events)
_AFTER = (
    select(*_COLUMNS)
    .where(events.c.job_id == bindparam("job_id"), events.c.no > bindparam("after_no"))
    .order_by(events.c.no)
    .limit(bindparam("limit"))
)
_NEXT_NO = (
    update(jobs)
    .where(jobs.c.id == bindparam("id_"))
    .values(last_no=jobs.c.last_no + 1)
    .returning(jobs.c.last_no, jobs.c.attempt)
)


def after(
    conn: Connection, job_id: JobId, after_no: int, limit: int, kinds: Collection[str] | None = None
) -> list[EventRow]:
    """Returns up to `limit` events of a job with numbers above `after_no`, in order. `kinds` None means every kind."""
    query = _AFTER if kinds is None else _AFTER.where(events.c.kind.in_(sorted(kinds)))
    rows = conn.execute(query, {"job_id": job_id, "after_no": after_no, "limit": limit})
    return [EventRow(*row) for row in rows]


def before(conn: Connection, job_id: JobId, no: int | None, limit: int, kinds: Collection[str]) -> list[EventRow]:
    """Returns the newest events of these kinds, newest first. With `no`, only events with a lower number."""
    query = select(*_COLUMNS).where(events.c.job_id == job_id, events.c.kind.in_(kinds))
    if no is not None:
        query = query.where(events.c.no < no)
    return [EventRow(*row) for row in conn.execute(query.order_by(events.c.no.desc()).limit(limit))]


def append(
    conn: Connection, job_id: JobId, kind: Kind, data: dict[str, Any], now: int, *, by: str | None = None
) -> int | None:
    """Writes an event of the service, and returns its number in the job. Returns None if the job does not exist."""
    row = conn.execute(_NEXT_NO, {"id_": job_id}).one_or_none()
    if row is None:
        return None
    insert_many(conn, [own_event(job_id, row.last_no, row.attempt, kind, data, now, by=by)])
    return int(row.last_no)


def has_note(conn: Connection, job_id: JobId, message: str) -> bool:
    """Returns True if the service has written a note with exactly this message for a job already."""
    condition = (events.c.job_id == job_id, events.c.source == SERVICE_SOURCE, events.c.kind == Kind.NOTE)
    texts = conn.execute(select(events.c.data).where(*condition)).scalars()
    return any(json.loads(data).get("message") == message for data in texts)


def own_event(
    job_id: JobId, no: int, attempt: int, kind: Kind, data: dict[str, Any], now: int, *, by: str | None = None,
    step: int | None = None, epoch: float | None = None,
) -> EventRow:  # fmt: skip
    """Returns an event of the service. `by` is the name of the key whose request caused the event, if there is a key.

    The caller sets the job's last_no to `no`.
    """
    text = json.dumps(data if by is None else {**data, "by": by})
    return EventRow(job_id, no, attempt, SERVICE_SOURCE, no, 0, kind, text_of(now), step, epoch, text)


def new_row(event: EventRow) -> NewRow:
    return _INSERT, values_of(event)


def insert_many(conn: Connection, rows: Sequence[EventRow]) -> None:
    """Inserts many events with one statement."""
    if rows:
        conn.execute(_INSERT, [values_of(row) for row in rows])


def insert_dead(conn: Connection, reason: str, raw: str, now: int) -> None:
    """Stores a node's message that could not be parsed in `dead_events`, where an operator can read it."""
    conn.execute(insert(dead_events), {"at": now, "reason": reason, "raw": raw[:100_000].replace("\0", "\ufffd")})


def prune_dead(conn: Connection, before: int) -> None:
    conn.execute(delete(dead_events).where(dead_events.c.at < before))
