"""Cancel, pause, resume; and do. To ask for what holds already, or is under way, changes nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

from fastapi import APIRouter, Request
from pydantic import Field, JsonValue
from sqlalchemy import Connection
from starlette.responses import Response

from footplate.contract.crash_points import Moment, reached
from footplate.contract.fields import Group, Slug, Whole
from footplate.contract.ids import JobId
from footplate.contract.lifecycle import StopMode
from footplate.contract.resources.jobs import Job
from service.api.documented import takes
from service.api.jobs import IDEMPOTENCY_KEY, answered, idempotency, look
from service.deps import JobPath, StrictRoute, beside, job_id, model_of, read_body, read_model, services_of
from service.jobs.cancel import cancel
from service.jobs.do import Wish, do
from service.jobs.pause import pause
from service.jobs.resume import ResumeChanges, resume
from service.store.rows import JobRow
from service.store.times import now_ms

router = APIRouter(route_class=StrictRoute, tags=["jobs"])
Verb = Callable[[Connection, str, JobId, str | None], JobRow]
"""Of whose project, on which job, asked by whom."""


class Cancel(Group):
    mode: StopMode = StopMode.CHECKPOINT
    """checkpoint saves, then stops; graceful stops at the next step; kill at once."""


class Pause(Group):
    pass


class Resume(Group):
    """What may change on the way; what is not sent stays."""

    priority: Annotated[Whole, Field(ge=-100, le=100)] | None = None
    pool: Slug | None = None
    resources: dict[str, Any] | None = None
    """Fields of the spec's resources to replace."""
    max_steps: Annotated[Whole, Field(ge=1)] | None = None
    """A higher limit."""
    num_train_epochs: Annotated[float, Field(gt=0)] | None = None
    """A higher limit."""
    time_limit: float | str | None = None
    """A higher limit: seconds, or "4h"."""


@router.post(
    "/jobs/{job}/cancel",
    status_code=202,
    operation_id="cancel_job",
    summary="Cancel; overrides a pause",
    **takes(Cancel),
)
async def cancel_job(request: Request, response: Response, job: JobPath) -> Job:
    given = await read_model(request, Cancel)
    seconds = services_of(request).settings.stop_seconds

    def verb(conn: Connection, project: str, one: JobId, by: str | None) -> JobRow:
        return cancel(conn, project, one, given.mode, now_ms(), stop_seconds=seconds, by=by)

    return await _do(request, response, job, verb)


@router.post(
    "/jobs/{job}/pause",
    status_code=202,
    operation_id="pause_job",
    summary="Save and stop, to be resumed",
    **takes(Pause),
)
async def pause_job(request: Request, response: Response, job: JobPath) -> Job:
    await read_model(request, Pause)
    seconds = services_of(request).settings.stop_seconds

    def verb(conn: Connection, project: str, one: JobId, by: str | None) -> JobRow:
        return pause(conn, project, one, now_ms(), stop_seconds=seconds, by=by)

    return await _do(request, response, job, verb)


@router.post(
    "/jobs/{job}/resume",
    status_code=202,
    operation_id="resume_job",
    summary="Queue it again, or as soon as it has stopped; it continues from its newest verified checkpoint",
    **takes(Resume),
)
async def resume_job(request: Request, response: Response, job: JobPath) -> Job:
    given = await read_model(request, Resume)
    changes = ResumeChanges(**given.model_dump())
    told = services_of(request).catalogues.told

    def verb(conn: Connection, project: str, one: JobId, by: str | None) -> JobRow:
        return resume(conn, project, one, changes, now_ms(), by=by, told=told)

    return await _do(request, response, job, verb)


class Do(Group):
    """What the loop does after the step at hand."""

    save: bool = False
    """A checkpoint."""
    evaluate: bool = False
    """An evaluation."""
    set: dict[str, JsonValue] = Field(default_factory=dict)
    """Arguments of training that hold from then on, in later attempts too: learning_rate (a number, or, where there
    are several optimizers, an object of numbers by their ids), max_steps, logging_steps, eval_steps, save_steps."""


@router.post(
    "/jobs/{job}/do",
    status_code=202,
    operation_id="do_job",
    summary="Save, evaluate, or change an argument, at the next step",
    openapi_extra={**takes(Do, required=True)["openapi_extra"], "parameters": [IDEMPOTENCY_KEY]},
)
async def do_job(request: Request, response: Response, job: JobPath) -> Job:
    """An event says what came of it, and after which step."""
    raw = await read_body(request)
    given = await beside(len(raw), lambda: model_of(raw, Do))
    once = idempotency(request, f"do {job_id(job)}\n".encode() + raw)
    wish = Wish(given.save, given.evaluate, given.set)

    def verb(conn: Connection, project: str, one: JobId, by: str | None) -> JobRow:
        return do(conn, project, one, wish, now_ms(), once=once, by=by)

    return await _do(request, response, job, verb)


async def _do(request: Request, response: Response, job: str, verb: Verb) -> Job:
    services = services_of(request)
    one = job_id(job)

    def write(conn: Connection) -> tuple[JobRow, list[str]]:
        verb(conn, services.project, one, services.caller.by)
        reached(Moment.BEFORE_VERB_COMMITS)
        return look(conn, services.project, one)

    row, nodes = await services.db.write(write)
    reached(Moment.AFTER_VERB_COMMITS)
    services.changed(one)
    return answered(response, row, nodes)
