"""Cancels and pauses jobs. A cancel has priority over a pause, a drain and a retry.

A paused job saves a checkpoint, frees its slots, and continues when it is resumed.
"""

from __future__ import annotations

from typing import Any, NoReturn

from sqlalchemy import Connection

from footplate.contract.errors import Conflict
from footplate.contract.events import Kind
from footplate.contract.ids import JobId
from footplate.contract.lifecycle import ACTIVE, Action, Desired, JobState, Reason, StopMode
from service.store import attempts, events, jobs
from service.store.row_types import JobRow

_HARDNESS = [StopMode.CHECKPOINT, StopMode.GRACEFUL, StopMode.KILL]


def lock_for(verb: Action, conn: Connection, project: str, job_id: JobId) -> JobRow:
    """Locks a job for a request such as cancel or pause, and returns the job.

    Raises NotFound, and Conflict for a job that runs elsewhere, because no request can reach its process.
    """
    job = jobs.lock_for_user(conn, project, job_id)
    if job.runs_elsewhere:
        refuse(job, verb, hint="stop it where it runs; a run that sends no more reports counts as lost after a while")
    return job


def is_claimed(conn: Connection, job: JobRow) -> bool:
    """Returns True if a worker holds a grant of the current attempt."""
    return any(source.claim is not None for source in attempts.sources_of(conn, job.id, job.attempt))


def withdraw(conn: Connection, job: JobRow, now: int) -> None:
    """Ends an attempt that no worker has claimed. A claim that arrives later is denied."""
    attempts.change(conn, job.id, job.attempt, ended_at=now, ending="withdrawn")
    attempts.end_sources(conn, job.id, job.attempt, now)


def _stop(
    conn: Connection, job: JobRow, *, to: JobState, desired: Desired, reason: Reason, mode: StopMode,
    stop_seconds: float, now: int, by: str | None,
) -> JobRow:  # fmt: skip
    """Sends a stop request to the worker that holds the job. Moves a job that no worker holds to the state `to`."""
    if job.state.holds_slots and is_claimed(conn, job):
        request_stop(conn, job, desired=desired, reason=reason, mode=mode, stop_seconds=stop_seconds, now=now, by=by)
    else:
        if job.state is JobState.STARTING:
            withdraw(conn, job, now)
        columns: dict[str, Any] = {"desired": desired, "not_before": None}
        jobs.move(conn, job.id, to=to, expect=[job.state], reason=reason, now=now, by=by, **columns)
    return jobs.get(conn, job.project, job.id)


def request_stop(
    conn: Connection, job: JobRow, *, desired: Desired, reason: Reason, mode: StopMode, stop_seconds: float, now: int,
    message: str | None = None, by: str | None = None,
) -> None:  # fmt: skip
    """Moves a job to STOPPING with a deadline. A second request keeps the earlier deadline and the harder mode."""
    deadline = now if mode is StopMode.KILL else now + round(stop_seconds * 1000)
    columns: dict[str, Any] = {"desired": desired, "stop_mode": mode, "stop_deadline": deadline}
    if job.state is not JobState.STOPPING:
        jobs.move(
            conn, job.id, to=JobState.STOPPING, expect=[job.state], reason=reason, message=message, now=now, by=by,
            **columns,
        )  # fmt: skip
        return
    columns["stop_deadline"] = min(deadline, job.stop_deadline or deadline)
    jobs.change(conn, job.id, now=now, reason=reason, message=message, **columns)
    data = {"state": job.state, "reason": reason, "message": message}
    events.append(conn, job.id, Kind.STATE, data, now, by=by)


def cancel(
    conn: Connection,
    project: str,
    job_id: JobId,
    mode: StopMode,
    now: int,
    *,
    stop_seconds: float,
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
    return _stop(
        conn, job, to=JobState.CANCELLED, desired=Desired.CANCEL, reason=Reason.CANCEL, mode=mode,
        stop_seconds=stop_seconds, now=now, by=by,
    )  # fmt: skip


def _is_under_way(job: JobRow, mode: StopMode) -> bool:
    if job.state is not JobState.STOPPING or job.desired is not Desired.CANCEL:
        return False
    return job.stop_mode is not None and _HARDNESS.index(mode) <= _HARDNESS.index(job.stop_mode)


def pause(
    conn: Connection, project: str, job_id: JobId, now: int, *, stop_seconds: float, by: str | None = None
) -> JobRow:
    """Pauses a job and returns the job. Raises NotFound, or Conflict if the job has ended or is being cancelled."""
    job = lock_for(Action.PAUSE, conn, project, job_id)
    if job.desired is Desired.PAUSE and not job.state.is_terminal:
        return job
    if job.state.is_terminal or job.desired is Desired.CANCEL:
        refuse(job, Action.PAUSE)
    return _stop(
        conn, job, to=JobState.PAUSED, desired=Desired.PAUSE, reason=Reason.PAUSE, mode=StopMode.CHECKPOINT,
        stop_seconds=stop_seconds, now=now, by=by,
    )  # fmt: skip


_STATES = {JobState.SUCCEEDED: "has succeeded", JobState.FAILED: "has failed", JobState.CANCELLED: "was cancelled"}
_REFUSED = {
    Action.CANCEL: "it cannot be cancelled", Action.PAUSE: "it cannot be paused",
    Action.RESUME: "it cannot be resumed", Action.DO: "it takes no commands", Action.FORK: "it cannot be forked",
    Action.DELETE: "it cannot be deleted",
}  # fmt: skip


def refuse(job: JobRow, verb: Action, hint: str | None = None) -> NoReturn:
    allowed_actions = job.actions
    words = ", ".join(allowed_actions) or "nothing until the job has stopped"
    doing = f"is {job.state}, on its way to {'cancelled' if job.desired is Desired.CANCEL else 'paused'}"
    is_stopping = job.state in ACTIVE and job.desired is not Desired.RUN
    state = doing if is_stopping else _STATES.get(job.state, f"is {job.state}")
    state = "runs elsewhere and only reports here" if job.runs_elsewhere else state
    raise Conflict(
        f"job {job.id} {state}, so {_REFUSED[verb]}; allowed now: {words}",
        hint=hint or ("fork it to train longer, or delete it" if job.state is JobState.SUCCEEDED else None),
        state=job.state,
        allowed=allowed_actions,
    )
