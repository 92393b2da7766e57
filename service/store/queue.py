"""Statements about the queue: what waits, what must be rung, and why the rest waits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sqlalchemy import BindParameter, Connection, and_, bindparam, exists, func, or_, select, update

from contract.ids import Fence, JobId, NodeId
from contract.lifecycle import JobState, Reason
from service.store.tables import IS_FRESH, IS_WAITING, attempts, jobs, sources

SKEW_MS = 60_000
"""By so much the clocks of two machines may differ."""
MOST = 10_000
"""How many waiting jobs are looked at in one go."""


@dataclass(frozen=True, slots=True)
class QueuedRow:
    id: JobId
    priority: int
    queued_at: int
    needs: str
    reason: Reason
    message: str | None


@dataclass(frozen=True, slots=True)
class BellRow:
    """A source that nobody has claimed yet."""

    job_id: JobId
    attempt: int
    source: int
    node: NodeId
    fence: Fence
    rung_at: int | None


@dataclass(frozen=True, slots=True)
class WaitingRow:
    """A queued job as those see it who ask why it waits."""

    id: JobId
    project: str
    name: str | None
    priority: int
    queued_at: int
    """Its age, by which it is tried: a drain or a loss does not send it to the end."""
    waits_since: int
    """When it was submitted, or resumed; or its last attempt ended."""
    not_before: int | None
    """It may not start before."""
    needs: str
    reason: Reason
    message: str | None


_NOW: BindParameter[int] = bindparam("now")
# An attempt that ended in the future ended before the wall clock was set back: its job would wait as much longer.
_CLOCK_WAS_SET_BACK = exists().where(
    attempts.c.job_id == jobs.c.id, attempts.c.attempt == jobs.c.attempt, attempts.c.ended_at > _NOW + SKEW_MS
)
_MAY_START = or_(jobs.c.not_before.is_(None), jobs.c.not_before <= _NOW, _CLOCK_WAS_SET_BACK)
_WAITING = (
    select(jobs.c.id, jobs.c.priority, jobs.c.queued_at, jobs.c.needs, jobs.c.reason, jobs.c.message)
    .where(IS_WAITING)
    .where(_MAY_START)
    .order_by(jobs.c.priority.desc(), jobs.c.id)
    .limit(bindparam("most"))
)
_UNCLAIMED = (
    select(sources.c.job_id, sources.c.attempt, sources.c.source, sources.c.node, jobs.c.fence, sources.c.rung_at)
    .join(jobs, (jobs.c.id == sources.c.job_id) & (jobs.c.attempt == sources.c.attempt))
    .where(sources.c.ended_at.is_(None), sources.c.claim.is_(None), jobs.c.state == JobState.STARTING.value)
)


# Reads all that wait.
_SHAPES = select(func.count(func.distinct(jobs.c.needs))).where(IS_WAITING)
_RANKED = (
    select(
        *_WAITING.selected_columns,
        func.row_number().over(partition_by=jobs.c.needs, order_by=[jobs.c.priority.desc(), jobs.c.id]).label("place"),
    )
    .where(IS_WAITING)
    .where(_MAY_START)
    .subquery()
)
_SHARED_OUT = (
    select(*[column for column in _RANKED.c if column.name != "place"])
    .where(_RANKED.c.place <= bindparam("share"))
    .order_by(_RANKED.c.priority.desc(), _RANKED.c.id)
    .limit(bindparam("most"))
)


def waiting(conn: Connection, now: int, most: int = MOST) -> list[QueuedRow]:
    """Queued jobs of every project that may start now, the most urgent first."""
    return [_to_row(row) for row in conn.execute(_WAITING, {"now": now, "most": most})]


def waiting_of_each_shape(conn: Connection, now: int, most: int = MOST) -> list[QueuedRow]:
    """The same, with a share for each shape: so that a long queue of one, which finds no room, hides no other."""
    share = max(1, most // max(1, conn.execute(_SHAPES).scalar_one()))
    return [_to_row(row) for row in conn.execute(_SHARED_OUT, {"now": now, "most": most, "share": share})]


def _to_row(row: Any) -> QueuedRow:
    return QueuedRow(row.id, row.priority, row.queued_at, row.needs, Reason(row.reason), row.message)


_IS_FRESH = and_(IS_FRESH, _MAY_START)
FRESH = select(jobs.c.id).where(_IS_FRESH).limit(1)


_SEEN = (
    select(
        jobs.c.id, jobs.c.project, jobs.c.name, jobs.c.priority, jobs.c.queued_at, jobs.c.not_before, jobs.c.needs,
        jobs.c.reason, jobs.c.message, attempts.c.ended_at,
    )
    .outerjoin(attempts, (attempts.c.job_id == jobs.c.id) & (attempts.c.attempt == jobs.c.attempt))
    .where(IS_WAITING)
    .order_by(jobs.c.priority.desc(), jobs.c.id)
    .limit(bindparam("most"))
)  # fmt: skip
_COUNTS = select(jobs.c.project, func.count().label("jobs")).where(IS_WAITING).group_by(jobs.c.project)


def seen(conn: Connection, most: int = MOST) -> list[WaitingRow]:
    """Queued jobs of every project, the most urgent first: of those, as many as placement looks at."""
    return [
        WaitingRow(
            row.id, row.project, row.name or None, row.priority, row.queued_at,
            max(row.queued_at, row.ended_at or 0), row.not_before, row.needs, Reason(row.reason), row.message,
        )
        for row in conn.execute(_SEEN, {"most": most})
    ]  # fmt: skip


def counts(conn: Connection) -> dict[str, int]:
    """Queued jobs, by project."""
    return {row.project: row.jobs for row in conn.execute(_COUNTS)}


def has_fresh(conn: Connection, now: int) -> bool:
    """Whether a job waits that placement has not looked at, or whose time has come."""
    return conn.execute(FRESH, {"now": now}).one_or_none() is not None


def explain(conn: Connection, job_id: JobId, reason: Reason, message: str) -> None:
    """Says why it waits. No event and no new version: it may change with every node that comes and goes."""
    queued = (jobs.c.id == job_id) & (jobs.c.state == JobState.QUEUED.value)
    conn.execute(update(jobs).where(queued).values(reason=reason.value, message=message))


def explain_the_rest(conn: Connection, now: int) -> None:
    """Those that nobody has looked at yet: otherwise they would be news with every poll."""
    message = f"waits behind the {MOST:,} jobs that are looked at first"
    values = {"reason": Reason.CAPACITY.value, "message": message}
    conn.execute(update(jobs).where(_IS_FRESH).values(values), {"now": now})


def unclaimed(conn: Connection) -> list[BellRow]:
    """Placed and not claimed: their bells may have to be rung, again."""
    return [BellRow(*row) for row in conn.execute(_UNCLAIMED)]
