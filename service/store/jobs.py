"""Statements about jobs. Only `move` changes a state."""

from __future__ import annotations

import json
from collections.abc import Collection
from typing import Any

from sqlalchemy import Connection, Row, bindparam, case, delete, func, insert, select, update

from footplate.contract.errors import NotFound
from footplate.contract.events import Kind
from footplate.contract.ids import JobId
from footplate.contract.lifecycle import ACTIVE, TERMINAL, Desired, JobState, Reason, StopMode, may_move
from service.store import events, webhooks
from service.store.database import NewRow, insert_rows
from service.store.mapping import columns_of, values_of
from service.store.queue import explained, explanations, shape_of
from service.store.row_types import NO_NEEDS, JobRow
from service.store.stored_spec import is_session, read_spec
from service.store.tables import (
    IS_ACTIVE,
    attempts,
    checkpoints,
    curve_buckets,
    curves,
    deleted_jobs,
    idempotency,
    job_tags,
    jobs,
    live_commands,
    sources,
)
from service.store.tables import events as event_table
from service.store.webhooks import HAS_WEBHOOK, StateChange

_STORED = columns_of(jobs, JobRow)
COLUMNS = [explained(column.name) if column.name in ("reason", "message") else column for column in _STORED]
_INSERT = insert(jobs)
_INSERT_TAGS = insert(job_tags)
_BY_ID = select(*COLUMNS).where(jobs.c.id == bindparam("job_id"))
_LOCKED = _BY_ID.with_for_update()
_ACTIVE = select(*COLUMNS).where(IS_ACTIVE)
_STOPPING = _ACTIVE.where(jobs.c.state == JobState.STOPPING)
_MAY_SERVE = (
    select(jobs.c.id, jobs.c.priority, jobs.c.spec)
    .where(IS_ACTIVE, jobs.c.state == JobState.RUNNING, jobs.c.desired == Desired.RUN)
    .where(jobs.c.spec.contains('"serve":{', autoescape=True))
)
_STARTED_FROM = (
    select(*COLUMNS)
    .join(checkpoints, jobs.c.starts_from == checkpoints.c.id)
    .where(checkpoints.c.job_id == bindparam("job_id"), jobs.c.starts_from.is_not(None))
    .where(jobs.c.state.not_in(TERMINAL))
    .order_by(jobs.c.id)
)
_STARTED_ELSEWHERE = (
    select(*COLUMNS)
    .where(jobs.c.project == bindparam("project"), jobs.c.starts_from.is_not(None))
    .where(jobs.c.state.not_in(TERMINAL))
    .order_by(jobs.c.id)
)
_FIND = _BY_ID.where(jobs.c.project == bindparam("project"))


def to_row(row: Row[Any]) -> JobRow:
    values = dict(row._mapping)
    values["name"] = values["name"] or None
    values["state"] = JobState(values["state"])
    values["reason"] = Reason(values["reason"])
    values["desired"] = Desired(values["desired"])
    values["stop_mode"] = StopMode(values["stop_mode"]) if values["stop_mode"] else None
    return JobRow(**values)


def rows_of(job: JobRow) -> list[NewRow]:
    """Returns the rows of a new job and its tags."""
    row = values_of(job) | {"name": job.name or "", "shape": shape_of(job.needs)}
    return [(_INSERT, row), *_rows_of_tags(job.project, job.id, job.tags)]


def find(conn: Connection, project: str, job_id: JobId) -> JobRow | None:
    row = conn.execute(_FIND, {"project": project, "job_id": job_id}).one_or_none()
    return to_row(row) if row else None


def get(conn: Connection, project: str, job_id: JobId) -> JobRow:
    """Returns a job. Raises NotFound, also for another project's job."""
    if (job := find(conn, project, job_id)) is None:
        raise _not_found(job_id)
    return job


def peek(conn: Connection, job_id: JobId) -> JobRow | None:
    """Returns a job of any project, for callers that have its id from a worker."""
    row = conn.execute(_BY_ID, {"job_id": job_id}).one_or_none()
    return to_row(row) if row else None


def serving(conn: Connection) -> dict[JobId, int]:
    """Returns the running serving sessions of all projects, each with its priority."""
    rows = conn.execute(_MAY_SERVE)
    return {JobId(row.id): row.priority for row in rows if is_session(read_spec(row.spec))}


def started_from(conn: Connection, job_id: JobId) -> list[JobRow]:
    """Returns the jobs that started from a checkpoint of this job and have not ended, oldest first."""
    return [to_row(row) for row in conn.execute(_STARTED_FROM, {"job_id": job_id})]


def started_from_others(conn: Connection, project: str) -> list[JobRow]:
    """Returns the jobs of a project that started from a checkpoint of another job and have not ended, oldest first."""
    return [to_row(row) for row in conn.execute(_STARTED_ELSEWHERE, {"project": project})]


def lock(conn: Connection, job_id: JobId, *, project: str | None = None) -> JobRow | None:
    """Returns the job, locked until the transaction ends, so that only one writer at a time numbers its events."""
    row = conn.execute(_LOCKED, {"job_id": job_id}).one_or_none()
    return to_row(row) if row and project in (None, row.project) else None


def lock_for_user(conn: Connection, project: str, job_id: JobId) -> JobRow:
    if (job := lock(conn, job_id, project=project)) is None:
        raise _not_found(job_id)
    return job


def lock_many(conn: Connection, job_ids: Collection[JobId]) -> dict[JobId, JobRow]:
    """Locks jobs in the order of their ids, so that two callers never wait for each other."""
    query = select(*COLUMNS).where(jobs.c.id.in_(sorted(job_ids))).order_by(jobs.c.id).with_for_update()
    return {row.id: to_row(row) for row in conn.execute(query)}


def move(
    conn: Connection,
    job_id: JobId,
    *,
    to: JobState,
    expect: Collection[JobState],
    reason: Reason,
    now: int,
    attempt: int | None = None,
    fence: int | None = None,
    message: str | None = None,
    next_attempt: int | None = None,
    next_fence: int | None = None,
    with_event: bool = True,
    by: str | None = None,
    step: int | None = None,
    **columns: Any,
) -> bool:
    """Moves a job to the state `to` with one guarded UPDATE, and writes its event and the deliveries of webhooks.

    Returns False if the job is in none of the states `expect`, or if its attempt or fence is not `attempt` or `fence`.
    A placement sets `next_attempt` and `next_fence`. `step` is the step to which the job goes back, for the event.
    `with_event=False` is for callers that have written the event.
    """
    allowed_states = [state for state in expect if may_move(state, to)]
    if len(allowed_states) != len(expect):
        wrong_states = ", ".join(sorted(set(expect) - set(allowed_states)))
        raise ValueError(f"a job must not move from {wrong_states} to {to}: see docs/reference/lifecycle.md")
    guard = [jobs.c.id == job_id, jobs.c.state.in_(allowed_states)]
    if attempt is not None:
        guard.append(jobs.c.attempt == attempt)
    if fence is not None:
        guard.append(jobs.c.fence == fence)
    values: dict[str, Any] = {"state": to, "reason": reason, "message": message, "updated_at": now}
    if to in TERMINAL:
        values["finished_at"] = now
    if to is JobState.RUNNING:
        # The error of an earlier attempt no longer counts. The attempt's own row keeps it.
        values["error"] = None
    if to not in ACTIVE:
        values |= {"stop_mode": None, "stop_deadline": None}
    if next_attempt is not None:
        values |= {"attempt": next_attempt, "fence": next_fence}
    if "needs" in columns:
        values["shape"] = shape_of(columns["needs"])
    statement = (
        update(jobs)
        .where(*guard)
        .values(version=jobs.c.version + 1, last_no=jobs.c.last_no + int(with_event), **(values | columns))
        .returning(jobs.c.last_no, jobs.c.attempt, jobs.c.project, jobs.c.name, jobs.c.tags, HAS_WEBHOOK)
    )
    row = conn.execute(statement).one_or_none()
    if row is None:
        return False
    if with_event:
        data = {"state": to, "reason": reason, "message": message}
        event = events.own_event(job_id, row.last_no, row.attempt, Kind.STATE, data, now, by=by, step=step)
        events.insert_many(conn, [event])
    if row.has_webhook:
        move = StateChange(
            job_id, row.project, row.name or None, row.tags, to, reason, message, row.attempt, row.last_no
        )
        webhooks.write_deliveries(conn, move, now)
    return True


def change(conn: Connection, job_id: JobId, *, now: int, **columns: Any) -> None:
    """Changes columns of a job other than its state, and increases its version. The caller holds the job's lock."""
    conn.execute(update(jobs).where(jobs.c.id == job_id).values(version=jobs.c.version + 1, updated_at=now, **columns))


def record(conn: Connection, job_id: JobId, **columns: Any) -> None:
    """Changes columns of a job without increasing its version, for progress, metrics, and the reason of a wait."""
    conn.execute(update(jobs).where(jobs.c.id == job_id).values(**columns))


def replace_tags(conn: Connection, project: str, job_id: JobId, tags: str) -> None:
    conn.execute(delete(job_tags).where(job_tags.c.job_id == job_id))
    insert_rows(conn, _rows_of_tags(project, job_id, tags))


def erase(conn: Connection, job_id: JobId) -> None:
    """Deletes the job and all rows that belong to it."""
    tables = (event_table, curves, curve_buckets, checkpoints, live_commands, sources, attempts, job_tags, idempotency)
    for table in tables:
        conn.execute(delete(table).where(table.c.job_id == job_id))
    conn.execute(delete(jobs).where(jobs.c.id == job_id))


def remember_deleted(conn: Connection, job_id: JobId, now: int) -> None:
    conn.execute(insert(deleted_jobs), {"job_id": job_id, "deleted_at": now})


def deleted(conn: Connection) -> list[JobId]:
    """Returns deleted jobs whose files may still exist."""
    return [JobId(row.job_id) for row in conn.execute(select(deleted_jobs.c.job_id))]


def prune_deleted(conn: Connection, before: int) -> None:
    conn.execute(delete(deleted_jobs).where(deleted_jobs.c.deleted_at < before))


def under_way_with(conn: Connection, project: str, text: str) -> JobId | None:
    """Returns the id of a job that has not ended and whose spec's JSON contains this text, or None."""
    # Few jobs have not ended, and an index finds them. So the texts of specs need no index.
    query = select(jobs.c.id).where(
        jobs.c.project == project,
        jobs.c.state.not_in(TERMINAL),
        jobs.c.spec.contains(text, autoescape=True),
    )
    return conn.execute(query.limit(1)).scalar()


def active(conn: Connection) -> list[JobRow]:
    """Returns the starting, running and stopping jobs of every project, for control."""
    return [to_row(row) for row in conn.execute(_ACTIVE)]


def stopping(conn: Connection) -> list[JobRow]:
    """Returns the active jobs that were asked to stop."""
    return [to_row(row) for row in conn.execute(_STOPPING)]


def heads(conn: Connection, job_ids: Collection[JobId]) -> dict[JobId, int]:
    """Returns the number of the newest event of each existing job."""
    return {
        row.id: row.last_no for row in conn.execute(select(jobs.c.id, jobs.c.last_no).where(jobs.c.id.in_(job_ids)))
    }


def newest_elsewhere(conn: Connection, project: str, name: str) -> JobRow | None:
    """Returns the newest job of this name that runs or ran elsewhere, locked. None if there is no such job."""
    query = select(*COLUMNS).where(jobs.c.project == project, jobs.c.name == name, jobs.c.needs == NO_NEEDS)
    row = conn.execute(query.order_by(jobs.c.id.desc()).limit(1).with_for_update()).one_or_none()
    return to_row(row) if row else None


def lock_name_elsewhere(conn: Connection, project: str, name: str) -> None:
    """Locks the name of a run elsewhere until the transaction ends, so that only one transaction creates its job.

    Needed on PostgreSQL only, because SQLite has one writer at a time. The lock's key is two numbers, so that it
    differs from control's lock, whose key is one number.
    """
    if conn.dialect.name == "postgresql":
        conn.execute(select(func.pg_advisory_xact_lock(func.hashtext(project), func.hashtext(name))))


def state_counts(conn: Connection) -> dict[str, int]:
    query = select(jobs.c.state, func.count().label("jobs")).group_by(jobs.c.state)
    return {row.state: row.jobs for row in conn.execute(query)}


def waiting_counts(conn: Connection) -> dict[str, int]:
    """Returns the numbers of queued jobs of every project, by the reason for their wait."""
    ready_shape = case((jobs.c.not_before.is_(None), jobs.c.shape), else_="").label("ready_shape")
    query = select(ready_shape, jobs.c.reason, func.count().label("jobs")).where(jobs.c.state == JobState.QUEUED)
    reasons = explanations(conn)
    counts: dict[str, int] = {}
    for row in conn.execute(query.group_by(ready_shape, jobs.c.reason)):
        reason, _ = reasons.get(row.ready_shape, (row.reason, None))
        counts[reason] = counts.get(reason, 0) + row.jobs
    return counts


def _rows_of_tags(project: str, job_id: JobId, tags: str) -> list[NewRow]:
    names = sorted(set(json.loads(tags))) if tags != "[]" else []
    return [(_INSERT_TAGS, {"project": project, "tag": tag, "job_id": job_id}) for tag in names]


def _not_found(job_id: JobId) -> NotFound:
    return NotFound(f"there is no job {job_id!r} in this project", hint="GET /jobs lists them")
