"""Accepts a job: writes its row, its first event, and its idempotency key, so that a repeated POST is recognised."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from sqlalchemy import Connection

from footplate.contract.crash_points import Moment, reached
from footplate.contract.errors import IdempotencyMismatch
from footplate.contract.events import Kind
from footplate.contract.files import named_in
from footplate.contract.ids import JobId
from footplate.contract.resources.jobs import SpecWarning
from footplate.contract.spec import JobSpec
from service.jobs import references as referred
from service.jobs import start_checkpoint
from service.jobs.needs import Needs
from service.store import events, jobs, webhooks
from service.store import idempotency as keys
from service.store.rows import IdempotencyRow, JobRow
from service.store.webhooks import Moved


@dataclass(frozen=True, slots=True)
class IdempotencyUse:
    key: str
    body_sha256: str
    respond: Callable[[JobRow], str] | None = None
    """A function that makes the response body, which is stored for repetitions of the request. If it is None, a
    repeated
    request gets the present state of the job."""


@dataclass(frozen=True, slots=True)
class Submitted:
    job: JobRow
    replayed: bool
    response: str | None
    """The result of `respond`, the same for every repetition."""


def submit(
    conn: Connection,
    *,
    project: str,
    spec: JobSpec,
    spec_json: str,
    now: int,
    job_id: JobId,
    idempotency: IdempotencyUse | None = None,
    by: str | None = None,
    note: dict[str, Any] | None = None,
    has_webhook: bool = True,
    traceparent: str | None = None,
    warnings: Sequence[SpecWarning] = (),
    fine_tune: str | None = None,
) -> Submitted:
    """Writes a new job. Raises IdempotencyMismatch if the key was used with another body.

    Raises InvalidSpec if the spec's bundle, file or start checkpoint was deleted meanwhile.

    A `note` is the second event of its history. `has_webhook=False` means that its project certainly has no webhook.
    """
    job = new_job(project, spec, spec_json, now, job_id, last_no=1 if note is None else 2)
    if fine_tune is not None:
        job = replace(job, fine_tune=fine_tune)
    if warnings:
        job = replace(job, warnings=json.dumps([warning.model_dump() for warning in warnings]))
    response = None
    if idempotency is not None:
        response = idempotency.respond(job) if idempotency.respond else None
        if (replay := _replay(conn, idempotency, job, response)) is not None:
            return replay
    referred.hold(conn, project, spec)
    if (start := start_checkpoint.find(conn, project, spec, hold=True)) is not None:
        job = replace(job, spec=start.pinned(spec).model_dump_json(), starts_from=start.checkpoint.id)
    jobs.insert_job(conn, job)
    data: dict[str, Any] = {"state": job.state, "reason": job.reason, "message": None}
    if traceparent is not None:
        data["traceparent"] = traceparent
    events.insert_own(conn, job_id, 1, 0, Kind.STATE, jobs.with_requester(by, data), now)
    if note is not None:
        events.insert_own(conn, job_id, 2, 0, Kind.NOTE, jobs.with_requester(by, note), now)
    if has_webhook:
        move = Moved(job_id, project, job.name, job.tags, job.state, job.reason, None, job.attempt, job.last_no)
        webhooks.write_deliveries(conn, move, now)
    reached(Moment.BEFORE_SUBMIT_COMMITS)
    return Submitted(job, replayed=False, response=response)


def reads(spec: JobSpec, idempotency: IdempotencyUse | None, *, has_webhook: bool) -> bool:
    """Returns True if `submit` reads from SQL for this spec, so that it cannot be a blind write (`Database.write`)."""
    holds = spec.code or spec.resume_from or any(named_in(spec.texts))
    return bool(idempotency or has_webhook or spec.tags or holds)


def replay(conn: Connection, project: str, use: IdempotencyUse) -> Submitted | None:
    """Returns the stored result of an earlier request with this key, or None.

    Callers look here before their checks, because a check may fail now although it passed for the first request.
    """
    holder = keys.find(conn, project, use.key)
    return None if holder is None else _replayed(conn, use, holder)


def _replay(conn: Connection, use: IdempotencyUse, job: JobRow, response: str | None) -> Submitted | None:
    holder = keys.take(conn, IdempotencyRow(job.project, use.key, use.body_sha256, job.id, response, job.created_at))
    return None if holder.job_id == job.id else _replayed(conn, use, holder)


def _replayed(conn: Connection, use: IdempotencyUse, holder: IdempotencyRow) -> Submitted:
    if holder.body_sha256 != use.body_sha256:
        raise IdempotencyMismatch(
            f"the Idempotency-Key {use.key!r} was used with another body, for job {holder.job_id}",
            hint="use a new key for a new job, or send the first body again",
        )
    return Submitted(jobs.get(conn, holder.project, holder.job_id), replayed=True, response=holder.response)


def new_job(project: str, spec: JobSpec, spec_json: str, now: int, job_id: JobId, last_no: int = 1) -> JobRow:
    limit = spec.resources.time_limit
    return JobRow(
        id=job_id,
        project=project,
        name=spec.name,
        tags=json.dumps(list(spec.tags)) if spec.tags else "[]",
        job_metadata=json.dumps(spec.metadata) if spec.metadata else "{}",
        priority=spec.priority,
        time_limit_ms=None if limit is None else round(limit * 1000),
        needs=_needs_json(Needs.of(spec)),
        last_no=last_no,
        created_at=now,
        updated_at=now,
        queued_at=now,
        spec=spec_json,
    )


_needs_json = lru_cache(maxsize=1024)(Needs.to_json)
