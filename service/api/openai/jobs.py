"""OpenAI's routes for fine-tuning jobs, for the check of a grader, and for what Footplate does not have.

A fine-tuning job is an ordinary job, which `GET /jobs` and the dashboard show, too.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from functools import partial
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Request
from sqlalchemy import Connection
from starlette.responses import Response

from footplate.contract.errors import FootplateError, InvalidSpec, NotFound, did_you_mean
from footplate.contract.fields import Group
from service import base_models
from service.api.bundles import require_code, store_bundle
from service.api.files import content_of, file_row
from service.api.jobs import JSON, accept_for, idempotency, replayed, write_job
from service.api.openai import from_job
from service.api.openai.model_names import ModelName, read_model_name
from service.api.openai.models import FineTuningJob, Grader, JobCheckpoint, JobEvent, ListPage, NewFineTuningJob
from service.api.openai.rows import checked_once
from service.api.openai.to_spec import Base, TuningFile, grader_bundle, in_the_request, translate
from service.api.verbs import apply, cancelling, pausing, resuming
from service.base_models import PartialSpec
from service.deps import (
    DEEP_OBJECT,
    LARGE,
    JobPath,
    Services,
    StrictRoute,
    entries_of,
    in_thread_if_large,
    job_id,
    model_of,
    read_body,
    read_model,
    services_of,
)
from service.jobs.serving import final_name
from service.jobs.submit import Submitted
from service.store import checkpoints, events, jobs
from service.store.job_list import JobFilter, newest_trainings
from service.store.row_types import JobRow
from service.store.stored_spec import read_spec
from service.store.times import now_ms

router = APIRouter(route_class=StrictRoute, include_in_schema=False)

JOBS = "/v1/fine_tuning/jobs"
GRADERS = "/v1/fine_tuning/alpha/graders"
PERMISSIONS = "/v1/fine_tuning/checkpoints/{checkpoint}/permissions"
After = Annotated[str | None, Query(max_length=200)]
Metadata = Annotated[Literal["null"] | None, Query(json_schema_extra=DEEP_OBJECT)]
Limit = Annotated[int, Query(ge=1, le=100)]


class UnknownModel(NotFound):
    code = "model_not_found"
    title = "There is no such model"


class NotSupported(FootplateError):
    code = "not_supported"
    status = 404
    title = "Footplate does not have this part of OpenAI's API"


class GraderToValidate(Group):
    grader: Grader


@router.post(JOBS)
async def create_job(request: Request) -> FineTuningJob | Any:
    """Checks the files line by line, and submits a job that trains on them."""
    services = services_of(request)
    raw = await read_body(request)
    idempotency_use = idempotency(request, b"fine-tune\n" + raw, respond=_shown)
    if (replay := await replayed(services, idempotency_use, services.project)) is not None:
        return _answered(replay)
    body = await model_of(raw, NewFineTuningJob)
    base = await _base(services, body.model)
    train = await _file(services, body.training_file, "training_file")
    validation = None
    if body.validation_file is not None:
        validation = await _file(services, body.validation_file, "validation_file")
    translation = translate(body, base, train, validation, services.catalogues.current)
    try:
        accepted_spec = await in_thread_if_large(LARGE, lambda: accept_for(services, translation.document))
        if translation.bundle is not None:
            require_code(services)
            await store_bundle(services, _pieces(translation.bundle))
        submitted = await write_job(
            request, services, accepted_spec, idempotency_use, fine_tune=json.dumps(translation.fine_tune)
        )
    except InvalidSpec as invalid:
        raise InvalidSpec(in_the_request(invalid.problems, body)) from invalid
    return _answered(submitted)


def _answered(submitted: Submitted) -> FineTuningJob | Response:
    if submitted.replayed and submitted.response:
        return Response(submitted.response, 200, {"Idempotency-Replayed": "true"}, JSON)
    return _shown(submitted.job)


async def _pieces(content: bytes) -> AsyncIterator[bytes]:
    yield content


def _shown(row: JobRow) -> FineTuningJob:
    return from_job.job(row, now_ms())


async def _file(services: Services, name: str, parameter: str) -> TuningFile:
    """Returns an uploaded file after a check of all its lines. Raises InvalidRows, and NotFound for a missing file."""
    try:
        row = await file_row(services, name)
    except NotFound as error:
        raise NotFound(error.message, hint="files.create() uploads one", parameter=parameter) from error
    rows = await asyncio.to_thread(checked_once, row.sha256, partial(content_of, services, row), parameter)
    return TuningFile(row.id, rows)


async def _base(services: Services, name: str) -> Base:
    """Returns a base model of the operator's table, a model by its path, or a model that was fine-tuned here."""
    table = services.settings.base_models
    if (tuned_model := read_model_name(name)) is not None:
        return await services.db.read(_tuned, project=services.project, name=tuned_model, table=table)
    partial_spec = base_models.find(table, name)
    if partial_spec is None:
        names = ", ".join(table) or "none"
        hint = did_you_mean(name, table) or "ask the operator to add it to the file of FOOTPLATE_OPENAI_MODELS"
        detail = f"there is no base model {name[:100]!r}; known: {names}, and paths such as models://qwen2.5-0.5b"
        raise UnknownModel(detail, hint=hint, parameter="model")
    return Base(name, partial_spec)


def _tuned(conn: Connection, project: str, name: ModelName, table: Mapping[str, PartialSpec]) -> Base:
    """Returns a fine-tuned model as the base: the weights that a job ends with, or those of the checkpoint at a step.

    The operator's entry for the base model says how it is trained.
    """
    row = jobs.get(conn, project, name.job)
    spec, saved_checkpoints = read_spec(row.spec), checkpoints.of_job(conn, row.id)
    checkpoint = final_name(spec, saved_checkpoints)
    if name.step is not None:
        checkpoint_ids = [item.id for item in saved_checkpoints if item.step == name.step]
        if not checkpoint_ids:
            detail = f"job {row.id} has no checkpoint at step {name.step}"
            hint = f"fine_tuning.jobs.checkpoints.list({row.id!r}) lists those that it has"
            raise UnknownModel(detail, hint=hint, parameter="model")
        checkpoint = checkpoint_ids[0]
    base = from_job.base_of(row)
    job_fields = {name: value for name, value in spec.items() if name in ("model", "processor", "resources") and value}
    partial_spec = {**(base_models.find(table, base) or {}), **job_fields}
    return Base(base, partial_spec, {"job": row.id, "checkpoint": checkpoint, "mode": "weights"})


@router.get(JOBS)
async def list_jobs(
    request: Request, after: After = None, limit: Limit = 20, metadata: Metadata = None
) -> ListPage[FineTuningJob]:
    """Lists every job of the project, newest first, also those that came through `POST /jobs`."""
    services = services_of(request)
    place = None if after is None else job_id(after)
    entries = entries_of(request, "metadata")
    filter = JobFilter(services.project, metadata=tuple(entries.items()))

    def matches(row: JobRow) -> bool:
        job_metadata = from_job.metadata_of(row)
        return not job_metadata if metadata == "null" else entries.items() <= job_metadata.items()

    def read(conn: Connection) -> list[JobRow]:
        if place is not None:
            jobs.get(conn, services.project, place)
        return newest_trainings(conn, filter, after=place, limit=limit + 1, matches=matches)

    rows = await services.db.read(read)
    return ListPage.of([_shown(row) for row in rows[:limit]], has_more=len(rows) > limit)


@router.get(f"{JOBS}/{{job}}")
async def get_job(request: Request, job: JobPath) -> FineTuningJob:
    services = services_of(request)
    return _shown(await services.db.read(jobs.get, project=services.project, job_id=job_id(job)))


@router.post(f"{JOBS}/{{job}}/cancel")
async def cancel_job(request: Request, job: JobPath) -> FineTuningJob:
    """Saves a checkpoint and stops. A running job needs a moment, and stays `running` until it has stopped."""
    services = services_of(request)
    return _shown((await apply(services, job, cancelling(services)))[0])


@router.post(f"{JOBS}/{{job}}/pause")
async def pause_job(request: Request, job: JobPath) -> FineTuningJob:
    services = services_of(request)
    return _shown((await apply(services, job, pausing(services)))[0])


@router.post(f"{JOBS}/{{job}}/resume")
async def resume_job(request: Request, job: JobPath) -> FineTuningJob:
    services = services_of(request)
    return _shown((await apply(services, job, resuming(services)))[0])


@router.get(f"{JOBS}/{{job}}/events")
async def list_events(request: Request, job: JobPath, after: After = None, limit: Limit = 20) -> ListPage[JobEvent]:
    """Lists changes of state, metrics, checkpoints and notes, newest first."""
    services, owner_id = services_of(request), job_id(job)
    no = None if after is None else from_job.event_no(owner_id, after)

    def read(conn: Connection) -> ListPage[JobEvent]:
        owner = jobs.get(conn, services.project, owner_id)
        if after is not None and not 1 <= (no or 0) <= owner.last_no:
            raise NotFound(f"job {owner_id} has no event {after[:100]!r}")
        rows = events.before(conn, owner_id, no, limit + 1, from_job.SHOWN_KINDS)
        return ListPage.of([from_job.event(row, owner) for row in rows[:limit]], has_more=len(rows) > limit)

    return await services.db.read(read)


@router.get(f"{JOBS}/{{job}}/checkpoints")
async def list_checkpoints(
    request: Request, job: JobPath, after: After = None, limit: Limit = 10
) -> ListPage[JobCheckpoint]:
    """Lists the committed checkpoints, newest first."""
    services, owner_id = services_of(request), job_id(job)

    def read(conn: Connection) -> ListPage[JobCheckpoint]:
        owner = jobs.get(conn, services.project, owner_id)
        rows = checkpoints.of_job(conn, owner_id)
        places: dict[str | None, int] = {None: -1, **{row.id: index for index, row in enumerate(rows)}}
        if after not in places:
            raise NotFound(f"job {owner_id} has no checkpoint {str(after)[:100]!r}")
        first_index = places[after] + 1
        usable_rows = [row for row in rows[first_index:] if row.status == checkpoints.COMMITTED]
        page_items = [from_job.checkpoint(row, owner) for row in usable_rows[:limit]]
        return ListPage.of(page_items, has_more=len(usable_rows) > limit)

    return await services.db.read(read)


@router.post(f"{GRADERS}/validate")
async def validate_grader(request: Request) -> dict[str, Any]:
    """Does the checks that a reinforcement job does when it is created. The grader's code is not run."""
    body = await read_model(request, GraderToValidate)
    grader_bundle(body.grader.source, "grader")
    return {"grader": body.grader.model_dump(mode="json", exclude_none=True)}


@router.post(f"{GRADERS}/run")
async def run_grader() -> None:
    raise NotSupported(
        "graders.run is not supported, because a grader's code runs only in the training process of its job",
        hint="graders.validate checks a grader, and grade(sample, item) can be called in your own Python",
    )


@router.get(PERMISSIONS)
@router.post(PERMISSIONS)
@router.delete(f"{PERMISSIONS}/{{permission}}")
async def refuse_permissions(checkpoint: str) -> None:
    raise NotSupported(
        f"the checkpoint {checkpoint[:200]!r} has no permissions of its own, because they come from the key's project",
        hint="POST /keys makes a key of the same project, which can use all of the project's checkpoints",
    )
