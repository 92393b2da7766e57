"""Cancels a job. A cancel has priority over a pause, a drain and a retry."""

from __future__ import annotations

from sqlalchemy import Connection

from footplate.contract.ids import JobId
from footplate.contract.lifecycle import Action, Desired, JobState, Reason, StopMode
from service.jobs.stopping import lock_for, refuse, stop
from service.store import jobs
from service.store.rows import JobRow

_HARDNESS = [StopMode.CHECKPOINT, StopMode.GRACEFUL, StopMode.KILL]


def cancel(
    conn: Connection,
    project: str,
    job_id: JobId,
    mode: StopMode,
    now: int,
    *,
    stop_seconds: float = 60.0,
    by: str | None = None,
) -> JobRow:
    """Cancels a job and returns the job. Raises NotFound, or Conflict if the job has already succeeded or failed.

    A second cancel with a harder mode replaces the first one.
    """
    job = lock_for(Action.CANCEL, conn, project, job_id)
    if job.state is JobState.CANCELLED or _is_under_way(job, mode):
        return job
    if job.state.is_terminal:
        refuse(job, Action.CANCEL)
    stop(
        conn, job, to=JobState.CANCELLED, desired=Desired.CANCEL, reason=Reason.CANCEL, mode=mode,
        stop_seconds=stop_seconds, now=now, by=by,
    )  # fmt: skip
    return jobs.get(conn, project, job_id)


def _is_under_way(job: JobRow, mode: StopMode) -> bool:
    if job.state is not JobState.STOPPING or job.desired is not Desired.CANCEL:
        return False
    return job.stop_mode is not None and _HARDNESS.index(mode) <= _HARDNESS.index(job.stop_mode)
