"""Accepts a job: writes its row, its first event, and its idempotency key, so that a repeated POST is recognised."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Any

from sqlalchemy import Connection

from footplate.contract.crash_points import Moment, reached
from footplate.contract.errors import IdempotencyMismatch
from footplate.contract.events import Kind
from footplate.contract.files import named_in
from footplate.contract.ids import JobId
from footplate.contract.resources.jobs import SpecWarning
from footplate.contract.spec import JobSpec
from service.jobs import references, start_checkpoint
from service.jobs.needs import Needs
from service.store import events, idempotency, jobs, webhooks
from service.store.database import Inserts, NewRow, Write, insert_rows
from service.store.row_types import IdempotencyRow, JobRow
from service.store.webhooks import StateChange


@dataclass(frozen=True, slots=True)
class IdempotencyUse:
    key: str
    body_sha256: str
    respond: Callable[[JobRow], str] | None = None
    """A function that makes the response body, which is stored for repetitions of the request. If it is None, a
    repeated request gets the present state of the job."""


@dataclass(frozen=True, slots=True)
class Submitted:
    job: JobRow
    replayed: bool
    response: str | None
    """The result of `respond`, the same for every repetition."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    """A new job, with everything that is stored about it. Calling this object with a connection writes the job."""

    project: str
    spec: JobSpec
    spec_json: str
    now: int
    job_id: JobId
    idempotency: IdempotencyUse | None = None
    by: str | None = None
    note: dict[str, Any] | None = None
    """The data of a note that becomes the second event of the job's history."""
    has_webhook: bool = True
    """False if the job's project certainly has no webhook."""
    traceparent: str | None = None
    warnings: Sequence[SpecWarning] = ()
    fine_tune: str | None = None

    @property
    def write(self) -> Write[Submitted]:
        """Returns the argument for `Database.write`: an `Inserts` if nothing must be read first, else this object."""
        reads = self.idempotency or self.has_webhook or self.spec.code or self.spec.resume_from
        if reads or any(named_in(self.spec.texts)):
            return self
        job = self._job()
        return Inserts(self._rows(job), partial(_written, Submitted(job, replayed=False, response=None)))

    def __call__(self, conn: Connection) -> Submitted:
        """Writes the job. Raises IdempotencyMismatch if the key was used with another body.

        Raises InvalidSpec if the spec's bundle, file or start checkpoint was deleted meanwhile.
        """
        job, response = self._job(), None
        if self.idempotency is not None:
            response = self.idempotency.respond(job) if self.idempotency.respond else None
            if (replay := _replay(conn, self.idempotency, job, response)) is not None:
                return replay
        references.hold(conn, self.project, self.spec)
        if (start := start_checkpoint.find(conn, self.project, self.spec, hold=True)) is not None:
            job = replace(job, spec=start.pinned(self.spec).model_dump_json(), starts_from=start.checkpoint.id)
        insert_rows(conn, self._rows(job))
        if self.has_webhook:
            webhooks.write_deliveries(conn, StateChange.of_new(job), self.now)
        return _written(Submitted(job, replayed=False, response=response))

    def _job(self) -> JobRow:
        job = new_job(self.project, self.spec, self.spec_json, self.now, self.job_id)
        if self.note is None and not self.warnings and self.fine_tune is None:
            return job
        warnings = json.dumps([warning.model_dump() for warning in self.warnings]) if self.warnings else None
        return replace(job, last_no=1 if self.note is None else 2, warnings=warnings, fine_tune=self.fine_tune)

    def _rows(self, job: JobRow) -> list[NewRow]:
        """Returns the rows of the job, its tags and its first events."""
        data: dict[str, Any] = {"state": job.state, "reason": job.reason, "message": None}
        if self.traceparent is not None:
            data["traceparent"] = self.traceparent
        first_events = [events.own_event(job.id, 1, 0, Kind.STATE, data, self.now, by=self.by)]
        if self.note is not None:
            first_events.append(events.own_event(job.id, 2, 0, Kind.NOTE, self.note, self.now, by=self.by))
        return [*jobs.rows_of(job), *map(events.new_row, first_events)]


def _written(submitted: Submitted) -> Submitted:
    reached(Moment.BEFORE_SUBMIT_COMMITS)
    return submitted


def replay(conn: Connection, project: str, use: IdempotencyUse) -> Submitted | None:
    """Returns the stored result of an earlier request with this key, or None.

    Callers call this before their checks, because a check may fail now although it passed for the first request.
    """
    holder = idempotency.find(conn, project, use.key)
    return None if holder is None else _first_result(conn, use, holder)


def _replay(conn: Connection, use: IdempotencyUse, job: JobRow, response: str | None) -> Submitted | None:
    row = IdempotencyRow(job.project, use.key, use.body_sha256, job.id, response, job.created_at)
    holder = idempotency.take(conn, row)
    return None if holder.job_id == job.id else _first_result(conn, use, holder)


def _first_result(conn: Connection, use: IdempotencyUse, holder: IdempotencyRow) -> Submitted:
    """Returns the stored result of the first request. Raises IdempotencyMismatch if its body was another one."""
    if holder.body_sha256 != use.body_sha256:
        raise IdempotencyMismatch(
            f"the Idempotency-Key {use.key!r} was used with another body, for job {holder.job_id}",
            hint="use a new key for a new job, or send the first body again",
        )
    return Submitted(jobs.get(conn, holder.project, holder.job_id), replayed=True, response=holder.response)


def new_job(project: str, spec: JobSpec, spec_json: str, now: int, job_id: JobId) -> JobRow:
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
        last_no=1,
        created_at=now,
        updated_at=now,
        queued_at=now,
        spec=spec_json,
    )


_needs_json = lru_cache(maxsize=1024)(Needs.to_json)
