"""Changes a job's name, tags, metadata and priority. Never what it trains."""

from __future__ import annotations

import json
from typing import Any, TypedDict

from sqlalchemy import Connection

from footplate.contract.errors import PreconditionFailed
from footplate.contract.events import Kind
from footplate.contract.ids import JobId
from service.store import events, jobs
from service.store.rows import JobRow


class Amendments(TypedDict, total=False):
    """The changes that a PATCH may make. A missing key leaves its column."""

    name: str | None
    tags: list[str]
    metadata: dict[str, Any]
    priority: int


def amend(
    conn: Connection,
    project: str,
    job_id: JobId,
    changes: Amendments,
    now: int,
    *,
    if_version: int | None = None,
    by: str | None = None,
) -> JobRow:
    """Returns the changed job. Raises NotFound, or PreconditionFailed if it is no longer at `if_version`."""
    job = jobs.lock_for_user(conn, project, job_id)
    require_version(job, if_version)
    columns = _columns(changes)
    if columns:
        jobs.change(conn, job_id, now=now, **columns)
        note = jobs.asked_by(by, {"message": f"changed: {', '.join(changes)}"})
        events.append(conn, job_id, Kind.NOTE, note, now)
    if "tags" in columns:
        jobs.replace_tags(conn, project, job_id, columns["tags"])
    return jobs.get(conn, project, job_id)


def require_version(job: JobRow, version: int | None) -> None:
    """Raises PreconditionFailed for another version. The caller holds the job's lock, so the version cannot change."""
    if version is not None and job.version != version:
        raise PreconditionFailed(
            f"job {job.id} is at version {job.version}, not {version}", hint="read it again, then send your change"
        )


def _columns(changes: Amendments) -> dict[str, Any]:
    columns: dict[str, Any] = {}
    if "name" in changes:
        columns["name"] = changes["name"] or ""
    if "tags" in changes:
        columns["tags"] = json.dumps(changes["tags"])
    if "metadata" in changes:
        columns["job_metadata"] = json.dumps(changes["metadata"])
    if "priority" in changes:
        columns["priority"] = changes["priority"]
    return columns
