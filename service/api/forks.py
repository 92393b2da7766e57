"""Fork: another job from a checkpoint of this one, with a merge patch on its spec."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from functools import partial
from typing import Any

from fastapi import APIRouter, Request
from pydantic import Field, JsonValue
from starlette.responses import Response

from footplate.contract.crash_points import Moment, reached
from footplate.contract.errors import InvalidSpec, Problem
from footplate.contract.fields import Group
from footplate.contract.ids import new_job_id
from footplate.contract.resources.jobs import ForkedJob, ForkOf, Job, SpecWarning
from footplate.contract.spec import JobSpec
from footplate.contract.spec_parts import CheckpointName, Mode
from footplate.contract.warnings import warnings_of
from service.api import views
from service.api.documented import takes
from service.api.jobs import IDEMPOTENCY_KEY, accept, created, idempotency, require_all
from service.deps import LARGE, JobPath, Services, StrictRoute, beside, job_id, model_of, read_body, services_of
from service.jobs.fork import Forked, forked, patched, source
from service.jobs.submit import replay, submit
from service.store.rows import JobRow
from service.store.times import now_ms
from service.tracing.enabled import TRACEPARENT

router = APIRouter(route_class=StrictRoute, tags=["jobs"])
audit = logging.getLogger("footplate.audit")


class Fork(Group):
    checkpoint: CheckpointName = "latest"
    """"latest", "best" or a checkpoint's id."""
    mode: Mode = "full"
    """Go on with optimizer, schedule and position, or take the weights alone and begin anew."""
    patch: dict[str, JsonValue] = Field(default_factory=dict)
    """What the new job's spec has else: a merge patch (RFC 7396), where null takes a field away."""


_TAKES = takes(Fork)["openapi_extra"]


@router.post(
    "/jobs/{job}/fork",
    status_code=202,
    operation_id="fork_job",
    summary="Another job from one of its checkpoints, with changes",
    response_model=ForkedJob,
    openapi_extra={**_TAKES, "parameters": [IDEMPOTENCY_KEY]},
)
async def fork_job(request: Request, response: Response, job: JobPath) -> Job | Response:
    """The new job, and under `fork` what differs and what thereby is not exactly as the old one would have gone on."""
    services = services_of(request)
    one = job_id(job)
    raw = await read_body(request)
    given = await beside(len(raw), lambda: model_of(raw, Fork))
    # A key belongs to this job's fork: the same body for another job is another request.
    use = idempotency(request, f"fork {one}\n".encode() + raw)
    if use is not None:
        # Before anything is looked at: the checkpoint may be gone since.
        before = await services.db.read(partial(replay, project=services.project, use=use))
        if before is not None:
            return created(before, services, response, 202, views.job(before.job))
    try:
        start, was_set = await services.db.read(
            partial(source, project=services.project, job_id=one, wanted=given.checkpoint)
        )
        document, spec = await beside(LARGE, lambda: _accepted(services, patched(start, given.patch, given.mode)))
        await require_all(services, spec, document)
        told = forked(start, was_set, spec, given.mode)
        use = idempotency(request, f"fork {one}\n".encode() + raw, respond=partial(_job, told=told))
        write = partial(
            submit,
            project=spec.project,
            spec=spec,
            spec_json=spec.model_dump_json(),
            now=now_ms(),
            job_id=new_job_id(),
            idempotency=use,
            by=services.caller.by,
            note=told.as_note(),
            is_heard=services.webhooks.hear(spec.project),
            traceparent=request.scope.get(TRACEPARENT),
            warnings=_warnings(spec, document, given.patch),
        )
        submitted = await services.db.write(write)
    except InvalidSpec as invalid:
        raise InvalidSpec([_in_request(one, given.patch) for one in invalid.problems]) from invalid
    reached(Moment.AFTER_SUBMIT_COMMITS)
    services.poke()
    new = submitted.job
    audit.info("job %s of project %s forked as %s by %s", one, services.project, new.id, services.caller.by)
    return created(submitted, services, response, 202, _job(new, told))


def _accepted(services: Services, document: dict[str, Any]) -> tuple[dict[str, Any], JobSpec]:
    return document, accept(services, document)


def _job(row: JobRow, told: Forked) -> ForkedJob:
    return ForkedJob(**views.job_fields(row), fork=ForkOf(**told.as_json()))


def _warnings(spec: JobSpec, document: dict[str, Any], patch: Mapping[str, Any]) -> list[SpecWarning]:
    """Returns the warnings about the new spec. Their pointers lead into the request."""
    found = [Problem(one.pointer, one.code, one.detail) for one in warnings_of(spec, document)]
    located = [_in_request(one, patch) for one in found]
    return [SpecWarning(code=one.code, pointer=one.pointer, detail=one.detail) for one in located]


_BESIDE_THE_PATCH = {
    "/resume_from/job": "", "/resume_from/checkpoint": "/checkpoint", "/resume_from/mode": "/mode",
}  # fmt: skip


def _in_request(problem: Problem, patch: Mapping[str, Any]) -> Problem:
    """What is wrong with the new spec, told about the request: of the patch, or of what it has left as it was."""
    pointer, detail = problem.pointer, problem.detail
    if pointer in _BESIDE_THE_PATCH or pointer.startswith("/patch"):
        return Problem(_BESIDE_THE_PATCH.get(pointer, pointer), problem.code, detail, problem.hint)
    here: Any = patch
    found = "/patch"
    for part in pointer.split("/")[1:]:
        name = part.replace("~1", "/").replace("~0", "~")
        if not isinstance(here, Mapping) or name not in here:
            break
        found, here = f"{found}/{part}", here[name]
    if found == "/patch" and pointer:
        detail = f"{pointer} of the job's spec: {detail}"
    return Problem(found, problem.code, detail, problem.hint)
