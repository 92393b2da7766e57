"""Stores the reports of runs elsewhere. A run elsewhere is a job whose training runs on no node of this service.

A report has progress and metrics, and nothing else: the protocol knows neither failures nor stops. So a run succeeds
with its report of 100 %, and `rescue` declares it lost after a silence. Its events are written by the service, because
there is no journal to number them.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from typing import Any

from sqlalchemy import Connection

from footplate.contract.events import Kind, ProgressData, json_safe
from footplate.contract.ids import Fence, new_job_id
from footplate.contract.lifecycle import JobState, Reason
from footplate.contract.machine import Retry
from footplate.contract.spec import JobSpec
from service.events import curves
from service.events.row_limits import latest, result_of
from service.jobs.conclude import AttemptEnd, Effects, conclude
from service.jobs.rescue import lose
from service.jobs.submit import new_job
from service.settings import ServiceSettings
from service.store import attempts, events, jobs, webhooks
from service.store.database import insert_rows
from service.store.row_types import NO_NEEDS, AttemptRow, JobRow, loads
from service.store.webhooks import StateChange

MOST_STEPS = 2**63 - 1
"""The greatest number of steps that SQL can store."""
ATTEMPT = 1
"""A run elsewhere has one attempt, because this service cannot start another one."""


@dataclass(frozen=True, slots=True)
class Report:
    """One report of a run."""

    percent: float | None = None
    eta_s: float | None = None
    step: int | None = None
    max_steps: int | None = None
    epoch: float | None = None
    metrics: dict[str, Any] = field(default_factory=dict)

    @property
    def begins(self) -> bool:
        """Returns True for the report that a training sends before its first step."""
        return self.percent == 0 and self.step is None

    @property
    def is_last(self) -> bool:
        return self.percent == 100


def report(conn: Connection, project: str, run: str, news: Report, now: int, settings: ServiceSettings) -> JobRow:
    """Adds a report to the job of the run with this name, and returns the job. The first report makes the job.

    If a new run of this name begins, the job of the earlier run ends as lost. After the report that has ended
    a job, further last reports change nothing, even if they differ.
    """
    job = _job_of(conn, project, run, news)
    if job is not None and news.begins and _progress(job).get("step"):
        lose(conn, job.id, ATTEMPT, "another run of this name began", now, settings, Effects())
        job = None
    if job is None:
        # Another report of this name may be making the job at this moment, so the search is repeated with the lock.
        jobs.lock_name_elsewhere(conn, project, run)
        job = _job_of(conn, project, run, news) or _begin(conn, project, run, now)
    if job.state.is_terminal:
        return job
    _record(conn, job, news, now)
    if news.is_last:
        row = jobs.lock(conn, job.id)
        assert row is not None
        result = result_of({"final": loads(row.metrics) or {}})
        end = AttemptEnd("finished", Reason.COMPLETED, running_ms=now - (job.started_at or now), result=result)
        conclude(conn, row, end, now, Effects(), retry_backoff_seconds=0)
    return jobs.get(conn, project, job.id)


def _job_of(conn: Connection, project: str, run: str, news: Report) -> JobRow | None:
    """Returns the running job of a run, or for a last report the newest job if such a report has ended it, or None."""
    job = jobs.newest_elsewhere(conn, project, run)
    if job is None or job.state is JobState.RUNNING:
        return job
    return job if job.state is JobState.SUCCEEDED and news.is_last else None


def _begin(conn: Connection, project: str, run: str, now: int) -> JobRow:
    spec = JobSpec(name=run, project=project, retry=Retry(max_attempts=1))
    job = replace(
        new_job(project, spec, spec.model_dump_json(), now, new_job_id()), needs=NO_NEEDS, state=JobState.RUNNING,
        reason=Reason.TRAINING, attempt=ATTEMPT, fence=Fence(ATTEMPT), started_at=now,
    )  # fmt: skip
    insert_rows(conn, jobs.rows_of(job))
    attempt = AttemptRow(job.id, ATTEMPT, job.fence, placed_at=now, claimed_at=now, running_at=now)
    attempts.insert_attempt(conn, attempt, [])
    data = {"state": job.state, "reason": job.reason, "message": None}
    events.insert_many(conn, [events.own_event(job.id, 1, ATTEMPT, Kind.STATE, data, now)])
    webhooks.write_deliveries(conn, StateChange.of_new(job), now)
    return job


def _record(conn: Connection, job: JobRow, news: Report, now: int) -> None:
    """Writes the events of a report: metrics that have changed, and the progress.

    Each report repeats all metrics of the run. An unchanged value is not a new point of its curve.
    """
    old_metrics = loads(job.metrics) or {}
    metrics = {name: value for name, value in json_safe(news.metrics).items() if old_metrics.get(name) != value}
    evals = {name: value for name, value in metrics.items() if name.startswith("eval_")}
    logs = {name: value for name, value in metrics.items() if name not in evals}
    progress = _progress_of(job, news)
    no, rows, points = job.last_no, [], curves.Gathered()
    for kind, data in ((Kind.LOG, logs), (Kind.EVAL, evals), (Kind.PROGRESS, progress.model_dump())):
        if not data:
            continue
        no += 1
        row = events.own_event(job.id, no, ATTEMPT, kind, data, now, step=progress.step, epoch=progress.epoch)
        rows.append(row)
        if kind is not Kind.PROGRESS:
            points.take(ATTEMPT, no, row.at, progress.step, progress.epoch, data)
    events.insert_many(conn, rows)
    curves.keep(conn, {job.id: points})
    latest_metrics, _ = latest(old_metrics, metrics)
    jobs.record(conn, job.id, last_no=no, progress=progress.model_dump_json(), metrics=json.dumps(latest_metrics))
    attempts.set_running_time(conn, job.id, ATTEMPT, now - (job.started_at or now))


def _progress_of(job: JobRow, news: Report) -> ProgressData:
    """Returns the progress after a report. Without any number of steps, a step is one percent."""
    old_progress = _progress(job)
    computed_steps = _steps(100 * news.step / news.percent) if news.step and news.percent else None
    max_steps = news.max_steps or computed_steps or old_progress.get("max_steps") or 100
    step = old_progress.get("step", 0) if news.step is None else news.step
    if news.is_last or (news.step is None and news.percent is not None):
        step = _steps(max_steps * (news.percent or 0) / 100)
    epoch = old_progress.get("epoch", 0.0) if news.epoch is None else news.epoch
    return ProgressData(step=step, max_steps=max_steps, epoch=epoch, eta_s=news.eta_s)


def _steps(number: float) -> int:
    """Returns a number of steps that was computed from a percentage, which may be tiny, or the greatest number."""
    return round(min(number, MOST_STEPS))


def _progress(job: JobRow) -> dict[str, Any]:
    return loads(job.progress) or {}
