"""Accept a job: its row, its first event, and the key under which the same request is the same job."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from sqlalchemy import Connection

from contract.ids import JobId
from contract.spec import JobSpec
from service.store.rows import JobRow


@dataclass(frozen=True, slots=True)
class IdempotencyUse:
    key: str
    body_sha256: str
    respond: Callable[[JobRow], str] | None = None
    """Makes the answer that a repeated request gets again; without it a replay carries the job as it is then."""


@dataclass(frozen=True, slots=True)
class Submitted:
    job: JobRow
    replayed: bool
    response: str | None
    """What `respond` made, the first time and every time."""


def submit(
    conn: Connection,
    *,
    project: str,
    spec: JobSpec,
    spec_json: str,
    now: int,
    job_id: JobId,
    idempotency: IdempotencyUse | None = None,
) -> Submitted:
    raise NotImplementedError
