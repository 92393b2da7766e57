"""The route that forks a job: a new job starts from a checkpoint of this job, with a merge patch on its spec."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from fastapi import APIRouter, Request
from pydantic import Field, JsonValue
from starlette.responses import Response

from footplate.contract.body import keys_of, pointer_to
from footplate.contract.errors import InvalidSpec, Problem
from footplate.contract.fields import Group
from footplate.contract.resources.jobs import ForkedJob, ForkOf, Job, SpecWarning
from footplate.contract.spec import Accepted
from footplate.contract.spec_parts import CheckpointName, Mode
from footplate.contract.warnings import warnings_of
from service.api import views
from service.api.documented import documented_body
from service.api.jobs import IDEMPOTENCY_KEY, accept_for, created, idempotency, replayed, write_job
from service.deps import LARGE, JobPath, StrictRoute, in_thread_if_large, job_id, model_of, read_body, services_of
from service.jobs.fork import forked, note_of, patched, source
from service.store.row_types import JobRow

router = APIRouter(route_class=StrictRoute, tags=["jobs"])


class Fork(Group):
    checkpoint: CheckpointName = "latest"
    """"latest", "best" or a checkpoint's id."""
    mode: Mode = "full"
    """`full` continues with optimizer, schedule and position. `weights` takes only the weights and starts at step 0."""
    patch: dict[str, JsonValue] = Field(default_factory=dict)
    """A merge patch (RFC 7396) for the new job's spec. null removes a field."""


@router.post(
    "/jobs/{job}/fork",
    status_code=202,
    summary="Start a new job from a checkpoint of this job, with changes",
    response_model=ForkedJob,
    **documented_body(
        Fork,
        {"checkpoint": "latest", "patch": {"training": {"learning_rate": 0.0001}}},
        parameters=[IDEMPOTENCY_KEY],
    ),
)
async def fork_job(request: Request, response: Response, job: JobPath) -> Job | Response:
    """Returns the new job. Its field `fork` lists the changes to the spec, and which of them change the training."""
    services = services_of(request)
    forked_id = job_id(job)
    raw = await read_body(request)
    fork = await model_of(raw, Fork)
    # The idempotency key stands for the body and the job's id, because the same body may be sent to fork another job.
    body = f"fork {forked_id}\n".encode() + raw
    use = idempotency(request, body)
    if (first_result := await replayed(services, use, services.project)) is not None:
        return created(first_result, services, response, 202, views.job(first_result.job))
    try:
        start, was_set = await services.db.read(
            source, project=services.project, job_id=forked_id, name=fork.checkpoint
        )
        document = patched(start, fork.patch, fork.mode)
        accepted = await in_thread_if_large(LARGE, lambda: accept_for(services, document))
        differences = forked(start, was_set, accepted.spec, fork.mode)
        respond = partial(_job, differences=differences)
        use = idempotency(request, body, respond=respond)
        warnings, note = _warnings(accepted, fork.patch), note_of(differences, accepted.spec)
        submitted = await write_job(request, services, accepted, use, warnings=warnings, note=note)
    except InvalidSpec as invalid:
        raise InvalidSpec([_in_request(problem, fork.patch) for problem in invalid.problems]) from invalid
    services.audit(f"job {forked_id} of project {services.project} forked as {submitted.job.id}")
    return created(submitted, services, response, 202, _job(submitted.job, differences))


def _job(row: JobRow, differences: ForkOf) -> ForkedJob:
    return ForkedJob(**dict(views.job(row)), fork=differences)


def _warnings(accepted: Accepted, patch: Mapping[str, Any]) -> list[SpecWarning]:
    """Returns the warnings about the new spec. Their JSON pointers refer to the request's body."""
    warnings = [Problem(warning.pointer, warning.code, warning.detail) for warning in warnings_of(accepted)]
    located_problems = [_in_request(warning, patch) for warning in warnings]
    return [SpecWarning(code=item.code, pointer=item.pointer, detail=item.detail) for item in located_problems]


_BESIDE_THE_PATCH = {
    "/resume_from/job": "", "/resume_from/checkpoint": "/checkpoint", "/resume_from/mode": "/mode",
}  # fmt: skip


def _in_request(problem: Problem, patch: Mapping[str, Any]) -> Problem:
    """Returns a problem of the new job's spec with a pointer into the request that made the fork.

    If the patch does not contain the field with the problem, the pointer is `/patch`, and the detail names the field.
    """
    pointer, detail = problem.pointer, problem.detail
    if pointer in _BESIDE_THE_PATCH or pointer.startswith("/patch"):
        return Problem(_BESIDE_THE_PATCH.get(pointer, pointer), problem.code, detail, problem.hint)
    value: Any = patch
    nearest = "/patch"
    for name in keys_of(pointer):
        if not isinstance(value, Mapping) or name not in value:
            break
        nearest, value = nearest + pointer_to(name), value[name]
    if nearest == "/patch" and pointer:
        detail = f"{pointer} of the job's spec: {detail}"
    return Problem(nearest, problem.code, detail, problem.hint)
