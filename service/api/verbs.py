"""Routes that cancel, pause and resume a job, and that send commands to it. Repeating a request is harmless."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from fastapi import APIRouter, Request
from sqlalchemy import Connection
from starlette.responses import Response

from footplate.contract.components import Catalogue
from footplate.contract.crash_points import Moment, reached
from footplate.contract.fields import Group
from footplate.contract.ids import JobId
from footplate.contract.lifecycle import StopMode
from footplate.contract.resources.jobs import Job
from service.api.documented import documented_body
from service.api.jobs import IDEMPOTENCY_KEY, answered, idempotency, look
from service.deps import (
    JobPath,
    Services,
    StrictRoute,
    job_id,
    model_of,
    read_body,
    read_model,
    services_of,
)
from service.jobs.do import Do, do
from service.jobs.resume import NO_CHANGES, Resume, resume
from service.jobs.stopping import cancel, pause
from service.store.row_types import JobRow
from service.store.times import now_ms

router = APIRouter(route_class=StrictRoute, tags=["jobs"])
Verb = Callable[[Connection, JobId], JobRow]
"""An operation on a job, for the project and the caller of a request. Returns the changed job."""


class Cancel(Group):
    mode: StopMode = StopMode.CHECKPOINT
    """`checkpoint` saves and then stops. `graceful` stops at the next step without saving. `kill` stops at once."""


class Pause(Group):
    pass


@router.post(
    "/jobs/{job}/cancel",
    status_code=202,
    summary="Cancel a job, even if it is being paused",
    **documented_body(Cancel, {"mode": "checkpoint"}),
)
async def cancel_job(request: Request, response: Response, job: JobPath) -> Job:
    services, body = services_of(request), await read_model(request, Cancel)
    return answered(response, *await apply(services, job, cancelling(services, body.mode)))


@router.post(
    "/jobs/{job}/pause",
    status_code=202,
    summary="Save a checkpoint and stop, so that the job can be resumed",
    **documented_body(Pause, {}),
)
async def pause_job(request: Request, response: Response, job: JobPath) -> Job:
    await read_model(request, Pause)
    services = services_of(request)
    return answered(response, *await apply(services, job, pausing(services)))


@router.post(
    "/jobs/{job}/resume",
    status_code=202,
    summary="Queue a job again, to continue from its newest verified checkpoint, or from an older one",
    **documented_body(Resume, {"priority": 5, "max_steps": 500}),
)
async def resume_job(request: Request, response: Response, job: JobPath) -> Job:
    """Queues the job. A job that is still stopping is queued as soon as it has stopped.

    With an older `checkpoint`, the job continues as if it had never got further. The newer checkpoints are deleted, and
    commands that were carried out after its step are forgotten. The answer is 409 if a newer checkpoint is pinned, or
    if another job starts from it. A fork keeps all checkpoints.
    """
    services, body = services_of(request), await read_model(request, Resume)
    verb = resuming(services, body, services.catalogues.announced)
    return answered(response, *await apply(services, job, verb))


@router.post(
    "/jobs/{job}/do",
    status_code=202,
    summary="Save, evaluate or change an argument at the next step of a running job",
    **documented_body(
        Do, {"save": True, "set": {"learning_rate": 0.0001}}, required=True, parameters=[IDEMPOTENCY_KEY]
    ),
)
async def do_job(request: Request, response: Response, job: JobPath) -> Job:
    """Stores the command. A later event reports its result, and the step after which it was carried out."""
    services, raw = services_of(request), await read_body(request)
    body = await model_of(raw, Do)
    once = idempotency(request, f"do {job_id(job)}\n".encode() + raw)
    project, by = services.project, services.caller.by

    def verb(conn: Connection, job: JobId) -> JobRow:
        return do(conn, project, job, body, now_ms(), once=once, by=by)

    return answered(response, *await apply(services, job, verb))


def cancelling(services: Services, mode: StopMode = StopMode.CHECKPOINT) -> Verb:
    project, by, seconds = services.project, services.caller.by, services.settings.stop_seconds
    return lambda conn, job: cancel(conn, project, job, mode, now_ms(), stop_seconds=seconds, by=by)


def pausing(services: Services) -> Verb:
    project, by, seconds = services.project, services.caller.by, services.settings.stop_seconds
    return lambda conn, job: pause(conn, project, job, now_ms(), stop_seconds=seconds, by=by)


def resuming(services: Services, changes: Resume = NO_CHANGES, catalogues: Sequence[Catalogue] = ()) -> Verb:
    project, by = services.project, services.caller.by
    return lambda conn, job: resume(conn, project, job, changes, now_ms(), by=by, catalogues=catalogues)


async def apply(services: Services, job: str, verb: Verb) -> tuple[JobRow, list[str]]:
    """Applies a verb to a job in one transaction. Returns the job, and the names of the nodes on which it has slots."""
    requested_id = job_id(job)

    def write(conn: Connection) -> tuple[JobRow, list[str]]:
        verb(conn, requested_id)
        reached(Moment.BEFORE_VERB_COMMITS)
        return look(conn, services.project, requested_id)

    result = await services.db.write(write)
    reached(Moment.AFTER_VERB_COMMITS)
    services.changed(requested_id)
    return result
