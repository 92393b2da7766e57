"""Changes the name, tags, metadata or priority of a job that exists, without an effect on its training, or deletes it.

A job is deleted with its rows, its history, and the idempotency key of its POST. The job must have ended, unless it
runs elsewhere: then no worker runs the job, and it only sends its events here.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from sqlalchemy import Connection

from footplate.contract.errors import PreconditionFailed
from footplate.contract.events import Kind
from footplate.contract.ids import JobId
from footplate.contract.lifecycle import Action
from service.jobs import start_checkpoint
from service.jobs.stopping import refuse
from service.store import events, jobs
from service.store.row_types import JobRow

COLUMNS: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "name": ("name", lambda name: name or ""),
    "tags": ("tags", json.dumps),
    "metadata": ("job_metadata", json.dumps),
    "priority": ("priority", int),
}
"""The fields that a PATCH may change, each with its SQL column and the function that converts a value for SQL."""


def amend(
    conn: Connection,
    project: str,
    job_id: JobId,
    changes: Mapping[str, Any],
    now: int,
    *,
    if_version: int | None = None,
    by: str | None = None,
) -> JobRow:
    """Changes fields of a job and returns the job. Raises NotFound.

    Raises PreconditionFailed if `if_version` is given and the job has another version.
    """
    job = jobs.lock_for_user(conn, project, job_id)
    require_version(job, if_version)
    columns = {COLUMNS[name][0]: COLUMNS[name][1](value) for name, value in changes.items()}
    if columns:
        jobs.change(conn, job_id, now=now, **columns)
        events.append(conn, job_id, Kind.NOTE, {"message": f"changed: {', '.join(changes)}"}, now, by=by)
    if "tags" in columns:
        jobs.replace_tags(conn, project, job_id, columns["tags"])
    return jobs.get(conn, project, job_id)


def require_version(job: JobRow, version: int | None) -> None:
    """Raises PreconditionFailed if the job does not have this version. None accepts any version.

    The caller holds the job's lock, so the version cannot change meanwhile.
    """
    if version is not None and job.version != version:
        raise PreconditionFailed(
            f"job {job.id} is at version {job.version}, not {version}", hint="read it again, then send your change"
        )


def delete(conn: Connection, project: str, job_id: JobId, now: int, *, if_version: int | None = None) -> None:
    """Deletes a job from SQL. The caller then deletes its folder in the artifact store.

    Raises NotFound, Conflict, CheckpointInUse, and PreconditionFailed if the job is no longer at `if_version`. The
    caller may die before the folder is deleted, so prune looks for it again.
    """
    job = jobs.lock_for_user(conn, project, job_id)
    require_version(job, if_version)
    if not (job.state.is_terminal or job.runs_elsewhere):
        refuse(job, Action.DELETE, hint="cancel it first")
    start_checkpoint.require_unheld(conn, job_id)
    jobs.erase(conn, job_id)
    jobs.remember_deleted(conn, job_id, now)
