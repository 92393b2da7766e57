"""Deletes a job with its rows, its history, and the idempotency key of its POST.

The job must have ended, unless it runs elsewhere: then no worker runs the job, and it only sends its events here.
"""

from __future__ import annotations

from sqlalchemy import Connection

from footplate.contract.ids import JobId
from footplate.contract.layout import job_folder
from footplate.contract.lifecycle import Action
from service.jobs import start_checkpoint
from service.jobs.amend import require_version
from service.jobs.stopping import refuse
from service.store import jobs


def delete(conn: Connection, project: str, job_id: JobId, now: int, *, if_version: int | None = None) -> list[str]:
    """Deletes a job from SQL and returns its folders, relative to the artifact store, which the caller then deletes.

    Raises NotFound, Conflict, CheckpointInUse, and PreconditionFailed if the job is no longer at `if_version`. The
    caller may die before the folders are deleted, so prune looks for them again.
    """
    job = jobs.lock_for_user(conn, project, job_id)
    require_version(job, if_version)
    if not (job.state.is_terminal or job.runs_elsewhere):
        refuse(job, Action.DELETE, hint="cancel it first")
    start_checkpoint.require_unheld(conn, job_id)
    jobs.erase(conn, job_id)
    jobs.remember_deleted(conn, job_id, now)
    return [str(job_folder(job_id))]
