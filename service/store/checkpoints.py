"""Statements about checkpoints. A checkpoint can be resumed from only if it has a row."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, bindparam, func, insert, not_, or_, select, update

from footplate.contract.ids import CheckpointId, JobId
from footplate.contract.lifecycle import TERMINAL, JobState
from service.store.mapping import columns_of, values_of
from service.store.row_types import CheckpointRow
from service.store.tables import IS_DELETING, checkpoints, jobs

LATEST, BEST = "latest", "best"
"""The names that a user may write instead of a checkpoint's id."""
COMMITTED, CORRUPT, DELETING, DELETED = "committed", "corrupt", "deleting", "deleted"
"""The statuses of a checkpoint. A DELETING one is not used any more, but its folder may still exist."""
GONE = frozenset({DELETING, DELETED})
"""The statuses of checkpoints whose files are deleted, or will be in a moment."""
_OF_JOB = (
    select(*columns_of(checkpoints, CheckpointRow))
    .where(checkpoints.c.job_id == bindparam("job_id"))
    .order_by(checkpoints.c.no.desc())
)
_STORED_STEP = select(func.max(checkpoints.c.step)).where(
    checkpoints.c.job_id == bindparam("job_id"),
    checkpoints.c.attempt == bindparam("attempt"),
    checkpoints.c.status == COMMITTED,
)
_OFFERS = _OF_JOB.where(checkpoints.c.status.not_in(GONE))
_BY_ID = select(*columns_of(checkpoints, CheckpointRow)).where(checkpoints.c.id == bindparam("id"))
_OWN = checkpoints.alias("own")
_HAS_ITS_OWN = select(_OWN.c.id).where(_OWN.c.job_id == jobs.c.id).exists()
# The job's other nodes may still have to start from the checkpoint from which the first node started.
_NEEDS_ITS_START = or_(jobs.c.state == JobState.STARTING, not_(_HAS_ITS_OWN))
_HELD = (
    select(checkpoints.c.id, checkpoints.c.attempt, checkpoints.c.step, jobs.c.id.label("by"))
    .join(jobs, jobs.c.starts_from == checkpoints.c.id)
    .where(checkpoints.c.job_id == bindparam("job_id"), jobs.c.starts_from.is_not(None))
    .where(jobs.c.state.not_in(TERMINAL), _NEEDS_ITS_START)
    .order_by(checkpoints.c.step, jobs.c.id)
)
_DELETING = select(checkpoints.c.job_id, checkpoints.c.path).where(IS_DELETING)


def of_job(conn: Connection, job_id: JobId) -> list[CheckpointRow]:
    """Returns a job's checkpoints with any status, newest first."""
    return _rows(conn, _OF_JOB, job_id)


def offers(conn: Connection, job_id: JobId) -> list[CheckpointRow]:
    """Returns a job's checkpoints from which an attempt may continue if their checksums are right, newest first.

    Corrupt checkpoints are included, because their disk may work again. Without them, a job could be left with no
    checkpoint, and would start again at step 0.
    """
    return _rows(conn, _OFFERS, job_id)


@dataclass(frozen=True, slots=True)
class HeldCheckpoint:
    """A checkpoint that another job is going to start from."""

    id: CheckpointId
    attempt: int
    step: int
    by: JobId
    """The other job."""


def held(conn: Connection, job_id: JobId) -> list[HeldCheckpoint]:
    """Returns a job's checkpoints that must stay, because other jobs that have not ended start from them."""
    return [HeldCheckpoint(*row) for row in conn.execute(_HELD, {"job_id": job_id})]


def committed(rows: Iterable[CheckpointRow]) -> list[CheckpointRow]:
    return [row for row in rows if row.status == COMMITTED]


def named(rows: Sequence[CheckpointRow], name: str) -> CheckpointRow | None:
    """Returns the checkpoint with this id, or the one that `latest` or `best` means. `rows` are sorted newest first."""
    if name == LATEST:
        return rows[0] if rows else None
    return next((row for row in rows if (row.is_best if name == BEST else row.id == name)), None)


def find(conn: Connection, checkpoint: CheckpointId) -> CheckpointRow | None:
    """Returns a checkpoint of any project, with any status. None if its job was deleted."""
    row = conn.execute(_BY_ID, {"id": checkpoint}).one_or_none()
    return CheckpointRow(*row) if row else None


def stored_step(conn: Connection, job_id: JobId, attempt: int) -> int | None:
    """Returns the highest step of an attempt's committed checkpoints, or None if it has none."""
    step: int | None = conn.execute(_STORED_STEP, {"job_id": job_id, "attempt": attempt}).scalar_one()
    return step


def insert_checkpoint(conn: Connection, row: CheckpointRow) -> None:
    if row.is_best:
        is_best = (checkpoints.c.job_id == row.job_id) & checkpoints.c.is_best
        conn.execute(update(checkpoints).where(is_best).values(is_best=False))
    conn.execute(insert(checkpoints), values_of(row))


def mark(conn: Connection, job_id: JobId, paths: Collection[str], status: str) -> None:
    """Sets the status of the checkpoints with these paths. A pinned checkpoint is never marked for deletion."""
    if paths:
        condition = (checkpoints.c.job_id == job_id) & checkpoints.c.path.in_(sorted(paths))
        if status in GONE:
            condition &= checkpoints.c.pinned_from.is_(None)
        conn.execute(update(checkpoints).where(condition).values(status=status))


def change(conn: Connection, checkpoint: CheckpointId, **columns: Any) -> None:
    conn.execute(update(checkpoints).where(checkpoints.c.id == checkpoint).values(**columns))


def heal(conn: Connection, job_id: JobId, path: str) -> None:
    """Marks a corrupt checkpoint as committed again, because its checksums are right now. Deleted ones stay deleted."""
    condition = (checkpoints.c.job_id == job_id) & (checkpoints.c.path == path) & (checkpoints.c.status == CORRUPT)
    conn.execute(update(checkpoints).where(condition).values(status=COMMITTED))


def deleting(conn: Connection) -> list[tuple[JobId, str]]:
    """Returns the job and the path of every checkpoint whose folder must be deleted."""
    return [(JobId(job_id), path) for job_id, path in conn.execute(_DELETING)]


def mark_deleted(conn: Connection, folders: Collection[tuple[JobId, str]]) -> None:
    for job_id, path in folders:
        condition = (checkpoints.c.job_id == job_id) & (checkpoints.c.path == path)
        conn.execute(update(checkpoints).where(condition, IS_DELETING).values(status=DELETED))


def _rows(conn: Connection, statement: Any, job_id: JobId) -> list[CheckpointRow]:
    return [CheckpointRow(*row) for row in conn.execute(statement, {"job_id": job_id})]
