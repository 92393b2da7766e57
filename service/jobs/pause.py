"""Pauses a job: it saves a checkpoint, frees its slots, and continues when it is resumed."""

from __future__ import annotations

from sqlalchemy import Connection

from footplate.contract.ids import JobId
from footplate.contract.lifecycle import Action, Desired, JobState, Reason, StopMode
from service.jobs.stopping import lock_for, refuse, stop
from service.store import jobs
from service.store.rows import JobRow


def pause(
    conn: Connection, project: str, job_id: JobId, now: int, *, stop_seconds: float = 60.0, by: str | None = None
) -> JobRow:
    """Pauses a job and returns the job. Raises NotFound, or Conflict if the job has ended or is being cancelled."""
    job = lock_for(Action.PAUSE, conn, project, job_id)
    if job.desired is Desired.PAUSE and not job.state.is_terminal:
        return job
    if job.state.is_terminal or job.desired is Desired.CANCEL:
        refuse(job, Action.PAUSE)
    stop(
        conn, job, to=JobState.PAUSED, desired=Desired.PAUSE, reason=Reason.PAUSE, mode=StopMode.CHECKPOINT,
        stop_seconds=stop_seconds, now=now, by=by,
    )  # fmt: skip
    return jobs.get(conn, project, job_id)
