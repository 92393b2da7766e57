"""Statements for OpenTelemetry traces: the trace of a job's POST, and the attempts that get spans in it."""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import dataclass

from sqlalchemy import Connection, bindparam, func, select

from footplate.contract.ids import JobId
from service.store.tables import attempts, events, jobs, nodes, sources


@dataclass(frozen=True, slots=True)
class EndedAttempt:
    """An attempt that has ended, and the trace of its job's POST."""

    traceparent: str
    nodes: list[str]
    error: str | None
    """The code of the error."""
    job_id: JobId
    project: str
    attempt: int
    waits_since: int
    """The time at which the job was submitted, or at which its previous attempt ended."""
    placed_at: int
    claimed_at: int | None
    running_at: int | None
    ended_at: int
    ending: str | None
    reason: str | None


_FIRST = select(events.c.data).where(events.c.job_id == bindparam("job_id"), events.c.no == 1)
_before = attempts.alias()
_BEFORE = (
    select(func.max(_before.c.ended_at))
    .where(_before.c.job_id == attempts.c.job_id, _before.c.attempt < attempts.c.attempt)
    .correlate(attempts)
    .scalar_subquery()
)
_ENDED = (
    select(
        events.c.data, attempts.c.error, attempts.c.job_id, jobs.c.project, attempts.c.attempt,
        func.coalesce(_BEFORE, jobs.c.created_at).label("waits_since"), attempts.c.placed_at, attempts.c.claimed_at,
        attempts.c.running_at, attempts.c.ended_at, attempts.c.ending, attempts.c.reason,
    )
    .join(jobs, jobs.c.id == attempts.c.job_id)
    .join(events, (events.c.job_id == attempts.c.job_id) & (events.c.no == 1))
    .order_by(attempts.c.job_id, attempts.c.attempt)
)  # fmt: skip
_NODES = (
    select(nodes.c.name)
    .join(sources, sources.c.node == nodes.c.id)
    .where(sources.c.job_id == bindparam("job_id"), sources.c.attempt == bindparam("attempt"))
    .order_by(sources.c.source)
)


def of_job(conn: Connection, job_id: JobId) -> object:
    """Returns the `traceparent` of a job's POST, or None."""
    data = conn.execute(_FIRST, {"job_id": job_id}).scalar()
    return json.loads(data).get("traceparent") if data else None


def ended(conn: Connection, job_ids: Collection[JobId], since: int) -> list[EndedAttempt]:
    """Returns the attempts of these jobs that ended at `since` or later, if the job's first event has a traceparent."""
    query = _ENDED.where(attempts.c.job_id.in_(sorted(job_ids)), attempts.c.ended_at >= since)
    rows = []
    for row in conn.execute(query).mappings().all():
        values = dict(row)
        data, error = values.pop("data"), values.pop("error")
        if traceparent := json.loads(data).get("traceparent"):
            code = json.loads(error).get("code") if error else None
            parameters = {"job_id": row["job_id"], "attempt": row["attempt"]}
            names = list(conn.execute(_NODES, parameters).scalars())
            rows.append(EndedAttempt(traceparent=traceparent, nodes=names, error=code, **values))
    return rows
