"""Statements about attempts and their sources. A source is one node's share of an attempt."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from sqlalchemy import Connection, bindparam, exists, func, insert, or_, select, text, update

from footplate.contract.ids import ClaimId, JobId, NodeId
from footplate.contract.lifecycle import JobState
from service.store.mapping import columns_of, values_of
from service.store.queue import UnclaimedSource
from service.store.row_types import AttemptRow, SourceRow
from service.store.tables import attempts, checkpoints, jobs, nodes, sources

_COLUMNS = columns_of(attempts, AttemptRow)
_SOURCE_COLUMNS = columns_of(sources, SourceRow)
_THIS = (attempts.c.job_id == bindparam("job_id")) & (attempts.c.attempt == bindparam("attempt"))
_SOURCES = (sources.c.job_id == bindparam("job_id")) & (sources.c.attempt == bindparam("attempt"))
_GET = select(*_COLUMNS).where(_THIS)
_GET_SOURCES = select(*_SOURCE_COLUMNS).where(_SOURCES).order_by(sources.c.source)
_OF_JOB = select(*_COLUMNS).where(attempts.c.job_id == bindparam("job_id")).order_by(attempts.c.attempt)
_SOURCES_OF_JOB = (
    select(*_SOURCE_COLUMNS)
    .where(sources.c.job_id == bindparam("job_id"))
    .order_by(sources.c.attempt, sources.c.source)
)
_COUNT_OPEN = select(func.count()).select_from(sources).where(text("ended_at IS NULL"))


def insert_attempt(conn: Connection, attempt: AttemptRow, source_rows: Sequence[SourceRow]) -> None:
    conn.execute(insert(attempts), values_of(attempt))
    if source_rows:
        conn.execute(insert(sources), [values_of(row) for row in source_rows])


def get(conn: Connection, job_id: JobId, attempt: int) -> AttemptRow | None:
    row = conn.execute(_GET, {"job_id": job_id, "attempt": attempt}).one_or_none()
    return AttemptRow(*row) if row else None


def sources_of(conn: Connection, job_id: JobId, attempt: int) -> list[SourceRow]:
    return [SourceRow(*row) for row in conn.execute(_GET_SOURCES, {"job_id": job_id, "attempt": attempt})]


def of_job(conn: Connection, job_id: JobId) -> list[AttemptRow]:
    """Returns the attempts of a job, oldest first."""
    return [AttemptRow(*row) for row in conn.execute(_OF_JOB, {"job_id": job_id})]


def sources_of_job(conn: Connection, job_id: JobId) -> list[SourceRow]:
    return [SourceRow(*row) for row in conn.execute(_SOURCES_OF_JOB, {"job_id": job_id})]


def sources_of_many(conn: Connection, job_ids: Collection[JobId]) -> dict[tuple[str, int, int], SourceRow]:
    query = select(*_SOURCE_COLUMNS).where(sources.c.job_id.in_(sorted(job_ids)))
    return {(row.job_id, row.attempt, row.source): SourceRow(*row) for row in conn.execute(query)}


def nodes_of(conn: Connection, job_ids: Sequence[JobId]) -> dict[JobId, list[str]]:
    """Returns, for each job, the names of the nodes of its attempt that has not ended, in the order of their ranks."""
    query = (
        select(sources.c.job_id, nodes.c.name)
        .join(nodes, nodes.c.id == sources.c.node)
        .where(sources.c.job_id.in_(list(job_ids)), sources.c.ended_at.is_(None))
        .order_by(sources.c.job_id, sources.c.source)
    )
    names: dict[JobId, list[str]] = {}
    for job_id, name in conn.execute(query):
        names.setdefault(job_id, []).append(name)
    return names


def open_sources(conn: Connection, only: Collection[NodeId] | None = None) -> list[SourceRow]:
    """Returns the sources that have not ended, and so hold slots, on the nodes `only`. None means every node."""
    query = select(*_SOURCE_COLUMNS).where(sources.c.ended_at.is_(None))
    if only is not None:
        query = query.where(sources.c.node.in_(sorted(only)))
    return [SourceRow(*row) for row in conn.execute(query)]


def count_open(conn: Connection) -> int:
    """Returns the number of sources on all nodes that have not ended, and so hold slots."""
    return int(conn.execute(_COUNT_OPEN).scalar_one())


def lost_between(conn: Connection, after: int, before: int) -> dict[tuple[JobId, int], set[str]]:
    """Returns the attempts that were lost between two times, each with the paths of its checkpoints in SQL."""
    same_attempt = (checkpoints.c.job_id == attempts.c.job_id) & (checkpoints.c.attempt == attempts.c.attempt)
    query = (
        select(attempts.c.job_id, attempts.c.attempt, checkpoints.c.path)
        .join(checkpoints, same_attempt & (checkpoints.c.status != "deleted"), isouter=True)
        .where(attempts.c.ending == "lost", attempts.c.ended_at > after, attempts.c.ended_at <= before)
    )
    paths: dict[tuple[JobId, int], set[str]] = {}
    for job_id, attempt, path in conn.execute(query):
        paths.setdefault((JobId(job_id), attempt), set()).update({path} - {None})
    return paths


def claim(
    conn: Connection, job_id: JobId, attempt: int, fence: int, node: NodeId, boot: str, claim: ClaimId, now: int,
    rendezvous: str | None = None,
) -> SourceRow | None:  # fmt: skip
    """Gives a node's part of an attempt to the first supervisor that claims it. Returns its row, or None if refused.

    A new claim is granted only while the job is starting. The supervisor that was granted a claim may repeat it until
    the attempt ends.
    """
    is_new = sources.c.claim.is_(None) & _job_is(job_id, attempt, fence, [JobState.STARTING])
    is_repeated = (sources.c.claim == claim) & _job_is(
        job_id, attempt, fence, [JobState.STARTING, JobState.RUNNING, JobState.STOPPING]
    )
    statement = (
        update(sources)
        .where(
            sources.c.job_id == job_id,
            sources.c.attempt == attempt,
            sources.c.node == node,
            sources.c.ended_at.is_(None),
            or_(is_new, is_repeated),
        )
        .values(claim=claim, boot=boot, claimed_at=func.coalesce(sources.c.claimed_at, now), rendezvous=rendezvous)
        .returning(*_SOURCE_COLUMNS)
    )
    row = conn.execute(statement).one_or_none()
    return SourceRow(*row) if row else None


def _job_is(job_id: JobId, attempt: int, fence: int, states: list[JobState]) -> Any:
    return exists().where(
        jobs.c.id == job_id,
        jobs.c.attempt == attempt,
        jobs.c.fence == fence,
        jobs.c.state.in_(states),
    )


def change(conn: Connection, job_id: JobId, attempt: int, **columns: Any) -> None:
    condition = (attempts.c.job_id == job_id) & (attempts.c.attempt == attempt)
    conn.execute(update(attempts).where(condition).values(**columns))


def set_running_time(conn: Connection, job_id: JobId, attempt: int, running_ms: int) -> None:
    """Stores the running time that a node reports for an attempt. A time below the stored one changes nothing."""
    condition = (attempts.c.job_id == job_id) & (attempts.c.attempt == attempt) & (attempts.c.running_ms < running_ms)
    conn.execute(update(attempts).where(condition).values(running_ms=running_ms))


def change_source(conn: Connection, job_id: JobId, attempt: int, source: int, **columns: Any) -> None:
    condition = (sources.c.job_id == job_id) & (sources.c.attempt == attempt) & (sources.c.source == source)
    conn.execute(update(sources).where(condition).values(**columns))


def end_sources(conn: Connection, job_id: JobId, attempt: int, now: int) -> None:
    """Ends the attempt's sources and so frees their slots."""
    condition = (sources.c.job_id == job_id) & (sources.c.attempt == attempt) & sources.c.ended_at.is_(None)
    conn.execute(update(sources).where(condition).values(ended_at=now))


def mark_sent(conn: Connection, rows: Collection[UnclaimedSource], now: int) -> None:
    """Stores the time at which the start messages of these sources were sent."""
    for row in rows:
        change_source(conn, row.job_id, row.attempt, row.source, sent_at=now)
