"""Closes an attempt that has ended, and decides the next state of its job. `next_move` is the policy, a pure function.

    how it ended          desired cancel                desired pause              desired run
    finished              cancelled(finished_first)     succeeded                  succeeded
    stopped               cancelled                     paused                     queued · time limit: failed
    lost, or retryable    cancelled                     paused                     queued(retry) in budget, else failed
    failed otherwise      cancelled                     failed                     failed

    stopping meanwhile, then lost or retryable: as stopped, and no retry is used up; with a time limit always failed

The columns are the states that the user desires.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any, Literal

from sqlalchemy import Connection

from footplate.contract.events import DoData, DoneData, Kind
from footplate.contract.ids import JobId
from footplate.contract.lifecycle import Desired, JobState, Reason
from footplate.contract.machine import Retry
from service.counters import Counts
from service.jobs.prune import rotate
from service.store import attempts, commands, events, jobs
from service.store.row_types import JobRow
from service.store.stored_spec import read_spec

POISON_AFTER = 3


@dataclass(frozen=True, slots=True)
class AttemptEnd:
    """The end of an attempt, before any decision about its job."""

    ending: Literal["finished", "stopped", "failed", "lost"]
    reason: Reason
    running_ms: int = 0
    error: dict[str, Any] | None = None
    result: dict[str, Any] = field(default_factory=dict)
    outputs: str | None = None

    @classmethod
    def of(cls, end: DoneData) -> AttemptEnd:
        is_known = end.reason in Reason.__members__.values()
        return cls(
            ending=end.ending.value,
            reason=Reason(end.reason) if is_known else Reason.ERROR,
            running_ms=round(end.running_s * 1000),
            error=end.error.model_dump() if end.error else None,
            result=end.result,
            outputs=end.outputs,
        )


@dataclass(slots=True)
class Effects:
    """The changes of one transaction to jobs, which are announced and counted after the commit."""

    jobs: set[JobId] = field(default_factory=set)
    """Jobs whose state has changed, or that have new events."""
    stop_requested: set[JobId] = field(default_factory=set)
    has_new_capacity: bool = False
    """True if a node takes work and its row has changed, so that waiting jobs may fit now."""
    counts: Counts = field(default_factory=Counts)


@dataclass(frozen=True, slots=True)
class StateMove:
    to: JobState
    reason: Reason
    message: str | None = None
    columns: dict[str, Any] = field(default_factory=dict)


def conclude(
    conn: Connection, job: JobRow, end: AttemptEnd, now: int, effects: Effects, *, retry_backoff_seconds: float
) -> None:
    """Closes the job's current attempt, and moves the job, whose row the caller has locked."""
    if end.ending == "finished" and job.state is JobState.STARTING:
        # MOVES allows no direct move to SUCCEEDED.
        jobs.move(conn, job.id, to=JobState.RUNNING, expect=[job.state], reason=Reason.TRAINING, now=now)
        job = jobs.lock(conn, job.id) or job
    attempts.change(
        conn, job.id, job.attempt, ended_at=now, ending=end.ending, reason=end.reason, running_ms=end.running_ms,
        error=_json(end.error), result=_json(end.result or None),
    )  # fmt: skip
    attempts.end_sources(conn, job.id, job.attempt, now)
    retry = Retry.model_validate(read_spec(job.spec)["retry"])
    move = next_move(job, end, retry, retry.backoff or retry_backoff_seconds, now)
    results: dict[str, Any] = (
        {"result": _json(end.result or None), "outputs": end.outputs} if end.ending == "finished" else {}
    )
    if move.to is JobState.SUCCEEDED:
        _drop_commands(conn, job, now)
    jobs.move(
        conn, job.id, to=move.to, expect=[job.state], attempt=job.attempt, fence=job.fence, reason=move.reason, now=now,
        message=move.message, running_ms=job.running_ms + end.running_ms, **results, **move.columns,
    )  # fmt: skip
    rotate(conn, job.id)
    effects.jobs.add(job.id)
    if move.to is JobState.FAILED:
        effects.counts.jobs_failed[move.reason] += 1
    elif move.to is JobState.QUEUED and end.ending in ("failed", "lost"):
        effects.counts.retries[end.reason] += 1


def next_move(job: JobRow, end: AttemptEnd, retry: Retry, backoff_seconds: float, now: int) -> StateMove:
    if end.ending == "finished":
        if job.desired is Desired.CANCEL:
            return StateMove(JobState.CANCELLED, Reason.FINISHED_FIRST, "the job finished before the cancel reached it")
        return StateMove(JobState.SUCCEEDED, Reason.COMPLETED, columns={"desired": Desired.RUN, "error": None})
    if job.desired is Desired.CANCEL:
        return StateMove(JobState.CANCELLED, Reason.CANCEL)
    if end.ending == "stopped":
        return _after_a_stop(job)
    return _after_a_failure(job, end, retry, backoff_seconds, now)


def _after_a_stop(job: JobRow) -> StateMove:
    if job.desired is Desired.PAUSE:
        return StateMove(JobState.PAUSED, Reason.PAUSE)
    if job.reason is Reason.TIME_LIMIT:
        return _out_of_time(job)
    return _queued_after(job, "the node drains, so the job continues on another node; this uses up no retry")


def _queued_after(job: JobRow, why: str) -> StateMove:
    """Returns the move to QUEUED after a drain, or after a pause that the user has cancelled by a resume."""
    if job.reason is Reason.RESUMED:
        return StateMove(JobState.QUEUED, Reason.RESUMED)
    return StateMove(JobState.QUEUED, Reason.DRAINED, why)


def _after_a_failure(job: JobRow, end: AttemptEnd, retry: Retry, backoff_seconds: float, now: int) -> StateMove:
    was_stopping = job.state is JobState.STOPPING
    is_retryable = end.ending == "lost" or end.reason.value in retry.on
    columns = {
        "failed_attempts": job.failed_attempts + 1,
        "failed_without_checkpoint": job.failed_without_checkpoint + 1,
        "error": _json(end.error),
    }
    if was_stopping and is_retryable and job.desired is Desired.PAUSE:
        return StateMove(JobState.PAUSED, Reason.PAUSE, "the attempt ended before it could save a checkpoint")
    if was_stopping and job.reason is Reason.TIME_LIMIT:
        return _out_of_time(job)
    if was_stopping and is_retryable:
        return _queued_after(job, f"the attempt ended before it could save a checkpoint: {_cause(end)}")
    refusal = _why_not_again(job, end, retry)
    if refusal is not None:
        return StateMove(JobState.FAILED, refusal[0], refusal[1], {**columns, "desired": Desired.RUN})
    # A job that gets further in each attempt is not at fault, so its wait does not grow.
    wait = backoff_seconds * 2**job.failed_without_checkpoint
    # The cause of a lost attempt is a full sentence, so nothing is put before it.
    why = _cause(end) if end.ending == "lost" else f"attempt {job.attempt} ended: {_cause(end)}"
    message = f"{why}; the next attempt starts in {wait:g} s"
    return StateMove(JobState.QUEUED, Reason.RETRY, message, {**columns, "not_before": now + round(wait * 1000)})


def _why_not_again(job: JobRow, end: AttemptEnd, retry: Retry) -> tuple[Reason, str] | None:
    if end.reason.value not in retry.on:
        why_lost = f"the attempt was lost, and retry.on does not contain {end.reason}"
        return end.reason, why_lost if end.ending == "lost" else _cause(end)
    failures, failures_in_a_row = job.failed_attempts + 1, job.failed_without_checkpoint + 1
    was_the_last = failures >= retry.max_attempts
    if failures_in_a_row >= POISON_AFTER and (end.ending == "lost" or not was_the_last):
        why = f"{failures_in_a_row} attempts in a row ended without a new checkpoint; the last: {end.reason}"
        return Reason.POISON, why
    if was_the_last:
        return end.reason, f"{_cause(end)} (attempt {failures} of {retry.max_attempts})"
    return None


def _cause(end: AttemptEnd) -> str:
    return str(end.error["message"]) if end.error else str(end.reason)


def _out_of_time(job: JobRow) -> StateMove:
    limit = (job.time_limit_ms or 0) / 1000
    message = f"the job ran for its time limit of {limit:g} s; resume it with a higher time_limit to continue"
    error = {"code": Reason.TIME_LIMIT, "message": message}
    return StateMove(JobState.FAILED, Reason.TIME_LIMIT, message, {"error": json.dumps(error)})


def record_loss(conn: Connection, job: JobRow, now: int) -> None:
    """Writes one gap event for each source that has not ended, from the first event that SQL does not have."""
    for source in attempts.sources_of(conn, job.id, job.attempt):
        if source.claim is not None and source.done is None:
            text = f"nothing after event {source.watermark} of attempt {source.attempt} had arrived when it was lost"
            gap = {
                "message": text, "source": source.source, "from": source.watermark + 1, "to": None,
                "reason": Reason.NODE_LOST,
            }  # fmt: skip
            events.append(conn, job.id, Kind.GAP, gap, now)


def _drop_commands(conn: Connection, job: JobRow, now: int) -> None:
    """Drops the commands that a succeeded job has not carried out, with an event for each.

    After any other end the commands stay, because a later attempt may carry them out.
    """
    for command in commands.drop_undone(conn, job.id):
        text = f"the job succeeded before it carried out the command of event {command.no}"
        data = DoData(status="dropped", message=text, asked=command.no)
        events.append(conn, job.id, Kind.DO, data.model_dump(exclude_defaults=True), now)


def _json(value: Any) -> str | None:
    return None if value is None else json.dumps(value)
