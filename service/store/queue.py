"""Statements about the queue: which jobs wait and why, and which Celery messages must be sent.

Queued jobs are of two kinds. Ready jobs may start now, and delayed jobs wait for a time (`not_before`). The ready jobs
with equal needs form a line, named by their shape. Every statement here reads only a few rows of an index, however long
the queue is.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b
from typing import Any, NamedTuple

from sqlalchemy import (
    ColumnElement,
    Connection,
    Row,
    Select,
    and_,
    bindparam,
    delete,
    func,
    select,
    text,
    tuple_,
    update,
)

from footplate.contract.ids import Fence, JobId, NodeId
from footplate.contract.lifecycle import JobState
from service.store.mapping import upsert
from service.store.tables import IS_ACTIVE, IS_DELAYED, IS_READY, TRIED, jobs, sources, waits

SKEW_MS = 60_000
"""The difference that the clocks of two machines may have."""
FIRST_CHUNK, LAST_CHUNK = 8, 512
"""The first and the largest number of a line's jobs that one statement reads. Most often, few jobs can start."""
MADE_READY_AT_ONCE = 500


class QueuePosition(NamedTuple):
    """A sorting key of waiting jobs. Placement tries the job with the smallest one first, in the order of `TRIED`."""

    urgency: int
    """The negative of the priority."""
    queued_at: int
    id: JobId


@dataclass(frozen=True, slots=True)
class QueuedRow:
    """A ready job, as placement needs it."""

    id: JobId
    priority: int
    queued_at: int
    version: int

    @property
    def position(self) -> QueuePosition:
        return QueuePosition(-self.priority, self.queued_at, self.id)


@dataclass(frozen=True, slots=True)
class LineHead:
    """The first job of a line, which is the group of ready jobs with the same needs."""

    shape: str
    needs: str
    job: QueuedRow


@dataclass(frozen=True, slots=True)
class UnclaimedSource:
    """One node's share of an attempt that is placed on the node, but that the node has not claimed yet."""

    job_id: JobId
    attempt: int
    source: int
    node: NodeId
    fence: Fence
    sent_at: int | None


@lru_cache(maxsize=4096)
def shape_of(needs: str) -> str:
    """Returns a hash of these needs, which is short enough for an index."""
    return blake2b(needs.encode(), digest_size=12).hexdigest()


def explained(column: str) -> ColumnElement[Any]:
    """Returns an SQL expression for the `reason` or `message` of a job.

    For a ready job, the value is in the row that control writes for all jobs of the same shape. Until control has
    written this row, the job's own column counts.
    """
    is_ready = and_(jobs.c.state == JobState.QUEUED, jobs.c.not_before.is_(None))
    of_shape = select(waits.c[column]).where(waits.c.shape == jobs.c.shape, is_ready).correlate(jobs).scalar_subquery()
    return func.coalesce(of_shape, jobs.c[column]).label(column)


# Jobs that can start --------------------------------------------------------------------------------------------------

# Finds the shapes one by one in the index, and the first job of each. With DISTINCT, both databases read every job.
_HEADS = text("""
    WITH RECURSIVE shapes (shape) AS (
        SELECT min(jobs.shape) FROM jobs WHERE state = 'queued' AND not_before IS NULL
        UNION ALL
        SELECT (
            SELECT min(jobs.shape) FROM jobs
            WHERE state = 'queued' AND not_before IS NULL AND jobs.shape > shapes.shape
        ) FROM shapes WHERE shapes.shape IS NOT NULL
    )
    SELECT head.shape, head.needs, head.id, head.priority, head.queued_at, head.version
    FROM shapes JOIN jobs AS head ON head.id = (
        SELECT jobs.id FROM jobs
        WHERE state = 'queued' AND not_before IS NULL AND jobs.shape = shapes.shape
        ORDER BY priority DESC, queued_at, jobs.id LIMIT 1
    )
    ORDER BY head.shape
""")


def behind(query: Select[Any]) -> tuple[Select[Any], Select[Any]]:
    """Returns queries for the jobs after a position: of the same priority, and of lower ones. No index serves both."""
    younger = tuple_(jobs.c.queued_at, jobs.c.id) > tuple_(bindparam("queued_at"), bindparam("id"))
    same_priority = query.where(jobs.c.priority == bindparam("priority"), younger).order_by(jobs.c.queued_at, jobs.c.id)
    lower = query.where(jobs.c.priority < bindparam("priority")).order_by(*TRIED)
    return same_priority.limit(bindparam("most")), lower.limit(bindparam("most"))


_OF_SHAPE = behind(
    select(jobs.c.id, jobs.c.priority, jobs.c.queued_at, jobs.c.version)
    .where(IS_READY)
    .where(jobs.c.shape == bindparam("shape"))
)


def heads(conn: Connection) -> tuple[LineHead, ...]:
    """Returns the first job of every queue line. Placement needs no new plan while these jobs are unchanged."""
    return tuple(LineHead(row.shape, row.needs, QueuedRow(*row[2:])) for row in conn.execute(_HEADS))


def line(conn: Connection, head: LineHead) -> Iterator[QueuedRow]:
    """Yields the jobs of a line in the order in which they are tried, and reads them as needed."""
    yield head.job
    for row in in_chunks(conn, _OF_SHAPE, head.job.position, FIRST_CHUNK, LAST_CHUNK, shape=head.shape):
        yield QueuedRow(*row)


def in_chunks(
    conn: Connection, statements: tuple[Select[Any], Select[Any]], position: QueuePosition, most: int, limit: int,
    **values: Any,
) -> Iterator[Sequence[Any]]:  # fmt: skip
    """Yields the rows after a position. Reads `most` of them at first, then more each time, up to `limit`."""
    priority, queued_at, job_id = -position.urgency, position.queued_at, position.id
    while True:
        rows: list[Row[Any]] = []
        for statement in statements:
            parameters = {"priority": priority, "queued_at": queued_at, "id": job_id, "most": most - len(rows)}
            rows += conn.execute(statement, {**parameters, **values})
            if len(rows) == most:
                break
        yield from rows
        if len(rows) < most:
            return
        last_row, most = rows[-1], min(4 * most, limit)
        priority, queued_at, job_id = last_row.priority, last_row.queued_at, last_row.id


# When delayed jobs become ready ---------------------------------------------------------------------------------------

_IS_DUE = select(jobs.c.id).where(IS_DELAYED).where(jobs.c.not_before <= bindparam("now")).limit(bindparam("most"))
# An attempt with an end in the future ended before the wall clock was set back. Its job would wait for too long.
# CROSS JOIN makes SQLite go from attempts to jobs, because there are hardly any such attempts.
_CLOCK_WAS_SET_BACK = text("""
    SELECT jobs.id FROM attempts CROSS JOIN jobs
    WHERE attempts.ended_at > :now + :skew AND jobs.id = attempts.job_id AND jobs.attempt = attempts.attempt
        AND state = 'queued' AND not_before IS NOT NULL
    LIMIT :most
""").bindparams(skew=SKEW_MS)


def has_due(conn: Connection, now: int) -> bool:
    """Returns True if some delayed job may start now, because the time `not_before` is reached."""
    return any(_due(conn, now, 1))


def make_due_jobs_ready(conn: Connection, now: int) -> int:
    """Turns delayed jobs into ready jobs if the time `not_before` is reached. Returns their number.

    One call changes at most `MADE_READY_AT_ONCE` jobs.
    """
    due = _due(conn, now, MADE_READY_AT_ONCE)
    if not due:
        return 0
    is_still_due = and_(jobs.c.id.in_(sorted(due)), jobs.c.state == JobState.QUEUED)
    return conn.execute(update(jobs).where(is_still_due).values(not_before=None)).rowcount


def _due(conn: Connection, now: int, most: int) -> list[JobId]:
    ids = {
        JobId(row.id)
        for query in (_IS_DUE, _CLOCK_WAS_SET_BACK)
        for row in conn.execute(query, {"now": now, "most": most})
    }
    return sorted(ids)[:most]


# Why the other jobs wait ----------------------------------------------------------------------------------------------

_EXPLANATIONS = select(waits.c.shape, waits.c.reason, waits.c.message)


def explanations(conn: Connection) -> dict[str, tuple[str, str]]:
    """Returns, for each shape, the reason for which its ready jobs wait, and a sentence about it."""
    return {row.shape: (row.reason, row.message) for row in conn.execute(_EXPLANATIONS)}


def explain(conn: Connection, new_waits: Mapping[str, tuple[str, str]], removed_shapes: Collection[str]) -> None:
    """Stores a reason and a message for each shape in `new_waits`, and deletes the rows of `removed_shapes`.

    No job gets an event or a new version, because reasons change often.
    """
    if removed_shapes:
        conn.execute(delete(waits).where(waits.c.shape.in_(sorted(removed_shapes))))
    if new_waits:
        rows = [
            {"shape": shape, "reason": reason, "message": text} for shape, (reason, text) in sorted(new_waits.items())
        ]
        upsert(conn, waits, rows)


# Celery messages ------------------------------------------------------------------------------------------------------

_UNCLAIMED = (
    select(sources.c.job_id, sources.c.attempt, sources.c.source, sources.c.node, jobs.c.fence, sources.c.sent_at)
    .join(jobs, (jobs.c.id == sources.c.job_id) & (jobs.c.attempt == sources.c.attempt))
    # IS_ACTIVE is the condition of a partial index. Without it, SQLite would read all waiting jobs.
    .where(sources.c.ended_at.is_(None), sources.c.claim.is_(None), IS_ACTIVE, jobs.c.state == JobState.STARTING)
)


def unclaimed(conn: Connection) -> list[UnclaimedSource]:
    """Returns the sources of starting attempts that are placed and not claimed."""
    return [UnclaimedSource(*row) for row in conn.execute(_UNCLAIMED)]
