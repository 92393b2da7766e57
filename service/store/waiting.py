"""Statements about the queue for users: the order in which jobs are tried, and the reason for each wait.

No answer takes longer because the queue has grown. Jobs are counted up to `MOST`, and pages are read only as far as
needed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from sqlalchemy import Connection, and_, bindparam, func, or_, select, tuple_

from footplate.contract.ids import JobId
from footplate.contract.lifecycle import JobState, Reason
from service.store.queue import FIRST_CHUNK, QueuePosition, behind, explained, in_chunks
from service.store.tables import IS_DELAYED, IS_READY, TRIED, attempts, jobs

MOST = 10_000
COUNTED_TO = 1_000
"""The number of waiting jobs is exact up to this number, as is the total of a list of jobs."""
MOST_AT_ONCE = 4_096
BEFORE_ALL = QueuePosition(-(2**31) + 1, 0, JobId(""))
"""A position before every job."""


class ReadyRow(NamedTuple):
    """A queued job that may start now. Its fields are columns of one index, so that reading many rows is cheap."""

    id: JobId
    priority: int
    queued_at: int
    project: str
    shape: str

    @property
    def position(self) -> QueuePosition:
        return QueuePosition(-self.priority, self.queued_at, self.id)


@dataclass(frozen=True, slots=True)
class DelayedRow:
    id: JobId
    project: str
    not_before: int


@dataclass(frozen=True, slots=True)
class WaitingRow:
    """A queued job with the facts that are shown to its user."""

    id: JobId
    project: str
    name: str | None
    priority: int
    queued_at: int
    """The time by which jobs of one priority are sorted. It does not change when an attempt is drained or lost."""
    waits_since: int
    """The time at which the job was submitted or resumed, or at which its last attempt ended."""
    not_before: int | None
    """The time before which the job may not start. None for a job that may start now."""
    needs: str
    shape: str
    reason: Reason
    message: str | None


_READY = select(jobs.c.id, jobs.c.priority, jobs.c.queued_at, jobs.c.project, jobs.c.shape).where(IS_READY)
_FIRST = _READY.order_by(*TRIED).limit(bindparam("most"))
_READY_BEHIND = behind(_READY)
_DELAYED = select(jobs.c.id, jobs.c.project, jobs.c.not_before).where(IS_DELAYED).order_by(jobs.c.not_before, jobs.c.id)
_DELAYED_BEHIND = _DELAYED.where(
    tuple_(jobs.c.not_before, jobs.c.id) > tuple_(bindparam("not_before"), bindparam("id"))
).limit(bindparam("most"))
_SEEN = (
    select(
        jobs.c.id, jobs.c.project, jobs.c.name, jobs.c.priority, jobs.c.queued_at, jobs.c.not_before, jobs.c.needs,
        jobs.c.shape, explained("reason"), explained("message"), attempts.c.ended_at,
    )
    .outerjoin(attempts, (attempts.c.job_id == jobs.c.id) & (attempts.c.attempt == jobs.c.attempt))
    .where(jobs.c.id.in_(bindparam("ids", expanding=True)), jobs.c.state == JobState.QUEUED)
)  # fmt: skip
_front = _FIRST.subquery("front")
_IS_BEFORE = or_(
    _front.c.priority > bindparam("priority"),
    and_(
        _front.c.priority == bindparam("priority"),
        tuple_(_front.c.queued_at, _front.c.id) < tuple_(bindparam("queued_at"), bindparam("id")),
    ),
)
_COUNTED = select(_front.c.project, _front.c.shape, func.count().label("jobs")).group_by(
    _front.c.project, _front.c.shape
)
_COUNTED_BEFORE = _COUNTED.where(_IS_BEFORE)
_delayed = _DELAYED.limit(bindparam("most")).subquery("later")
_DELAYED_COUNTED = select(_delayed.c.project, func.count().label("jobs")).group_by(_delayed.c.project)
_own = (
    select(jobs.c.id)
    .where(jobs.c.project == bindparam("project"), jobs.c.state == JobState.QUEUED)
    .limit(bindparam("most"))
    .subquery()
)
_OWN = select(func.count()).select_from(_own)


def ready(conn: Connection, after: QueuePosition | None) -> Iterator[ReadyRow]:
    """Yields ready jobs of every project in the order in which control tries to place them.

    Begins after the position `after`, or at the first job. Rows are read in chunks as the caller needs them.
    """
    for row in in_chunks(conn, _READY_BEHIND, after or BEFORE_ALL, 4 * FIRST_CHUNK, MOST_AT_ONCE):
        yield ReadyRow(*row)


def delayed(conn: Connection, after: tuple[int, str]) -> Iterator[DelayedRow]:
    """Yields jobs of every project that may not start yet, ordered by the time at which they may start.

    Rows are read in chunks as the caller needs them.
    """
    while True:
        parameters = {"not_before": after[0], "id": after[1], "most": MOST_AT_ONCE}
        rows = [DelayedRow(*row) for row in conn.execute(_DELAYED_BEHIND, parameters)]
        yield from rows
        if len(rows) < MOST_AT_ONCE:
            return
        after = rows[-1].not_before, rows[-1].id


def seen(conn: Connection, ids: Collection[JobId]) -> dict[JobId, WaitingRow]:
    """Returns the rows of the given jobs by id, without jobs that are not queued."""
    rows = conn.execute(_SEEN, {"ids": list(ids)}) if ids else ()
    return {
        row.id: WaitingRow(
            row.id, row.project, row.name or None, row.priority, row.queued_at, max(row.queued_at, row.ended_at or 0),
            row.not_before, row.needs, row.shape, Reason(row.reason), row.message,
        )
        for row in rows
    }  # fmt: skip


def count_ready(conn: Connection, before: QueuePosition | None = None, most: int = MOST) -> dict[tuple[str, str], int]:
    """Counts the ready jobs before a position, by project and shape. Reads the first `most` jobs of the queue only."""
    if before is None:
        rows = conn.execute(_COUNTED, {"most": most})
    else:
        parameters = {"priority": -before.urgency, "queued_at": before.queued_at, "id": before.id}
        rows = conn.execute(_COUNTED_BEFORE, {**parameters, "most": most})
    return {(row.project, row.shape): row.jobs for row in rows}


def count(conn: Connection, project: str | None, most: int = COUNTED_TO + 1) -> tuple[int, int]:
    """Returns the number of waiting jobs of this project (None means any), and the number of other projects' jobs.

    Of each kind at most `most` are counted.
    """
    totals: dict[str, int] = {}
    for (name, _), number in count_ready(conn, most=most).items():
        totals[name] = totals.get(name, 0) + number
    for row in conn.execute(_DELAYED_COUNTED, {"most": most}):
        totals[row.project] = totals.get(row.project, 0) + row.jobs
    if project is None:
        return min(most, sum(totals.values())), 0
    in_others = sum(number for name, number in totals.items() if name != project)
    in_project: int = conn.execute(_OWN, {"project": project, "most": most}).scalar_one()
    return in_project, min(most, in_others)
