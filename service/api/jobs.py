"""Routes that submit, show, change and delete one job."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from hashlib import sha256
from typing import Any

from fastapi import APIRouter, Request
from pydantic import BaseModel, ConfigDict, create_model
from sqlalchemy import Connection
from starlette.responses import Response

from footplate.contract.body import read_json
from footplate.contract.crash_points import Moment, reached
from footplate.contract.errors import FootplateError, InvalidSpec, PreconditionFailed, Problem, few_hints
from footplate.contract.fields import Group
from footplate.contract.ids import JobId, new_job_id
from footplate.contract.layout import job_folder
from footplate.contract.resources.jobs import Job, SpecWarning
from footplate.contract.spec import Accepted, JobSpec, accept
from footplate.contract.warnings import warnings_of
from service.api import views
from service.api.bundles import missing_code
from service.api.documented import documented_body
from service.api.files import missing_files
from service.api.views import etag
from service.deps import JobPath, Services, StrictRoute, in_thread_if_large, job_id, read_body, read_model, services_of
from service.jobs.amend import amend, delete
from service.jobs.remove_folders import delete_folder
from service.jobs.submit import IdempotencyUse, Submission, Submitted, replay
from service.store import attempts, jobs
from service.store.row_types import JobRow
from service.store.times import now_ms
from service.tracing import TRACEPARENT

router = APIRouter(route_class=StrictRoute, tags=["jobs"])

JSON = "application/json"
MAX_KEY_LENGTH = 255
SPEC_BODY: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {
            JSON: {
                "schema": {"$ref": "#/components/schemas/JobSpec"},
                "example": {"model": "toy/mlp", "data": "toy/regression"},
            }
        },
    }
}
IDEMPOTENCY_KEY = {
    "name": "Idempotency-Key",
    "in": "header",
    "schema": {"type": "string", "maxLength": MAX_KEY_LENGTH},
    "description": "Requests with the same key and body within a week have one effect.",
}
IF_MATCH = {
    "name": "If-Match",
    "in": "header",
    "schema": {"type": "string"},
    "description": "The ETag that you read. The answer is 412 if the job has changed since.",
}


class InvalidHeader(FootplateError):
    code = "invalid_header"
    status = 422
    title = "A header cannot be used"


@router.post(
    "/jobs",
    status_code=201,
    summary="Submit a job",
    response_model=Job,
    openapi_extra={**SPEC_BODY, "parameters": [IDEMPOTENCY_KEY]},
)
async def create_job(request: Request, response: Response) -> Job | Response:
    """Stores the job and its first event in one transaction. Works without Redis, too."""
    services = services_of(request)
    raw = await read_body(request)
    use = idempotency(request, raw)
    body = await in_thread_if_large(len(raw), lambda: read_json(raw))
    try:
        accepted = await in_thread_if_large(len(raw), lambda: accept_for(services, body))
        submitted = await write_job(request, services, accepted, use)
    except InvalidSpec:
        # The body may repeat a request that was valid earlier. `write_job` finds the repeated requests that still are.
        name = body.get("project") if isinstance(body, dict) else None
        project = name if isinstance(name, str) and services.caller.may_submit_to(name) else services.project
        first_result = await replayed(services, use, project)
        if first_result is None:
            raise
        submitted = first_result
    return created(submitted, services, response, 201, views.job(submitted.job))


async def replayed(services: Services, use: IdempotencyUse | None, project: str) -> Submitted | None:
    """Returns the stored result of an earlier request with the same key and body, or None. Without a key there is none.

    A repeated request is answered even if checks refuse it, because its file or checkpoint may have been deleted since.
    """
    return None if use is None else await services.db.read(replay, project=project, use=use)


async def write_job(
    request: Request,
    services: Services,
    accepted: Accepted,
    use: IdempotencyUse | None,
    *,
    warnings: Sequence[SpecWarning] | None = None,
    note: dict[str, Any] | None = None,
    fine_tune: str | None = None,
) -> Submitted:
    """Checks what the spec needs, and stores the job. Raises InvalidSpec.

    `warnings` replaces the warnings about the spec. `note` and `fine_tune` are stored with the job.
    """
    await require_all(services, accepted)
    spec = accepted.spec
    has_webhook = services.webhooks.may_have_webhook(spec.project)
    submission = Submission(
        project=spec.project,
        spec=spec,
        spec_json=spec.model_dump_json(),
        now=now_ms(),
        job_id=new_job_id(),
        idempotency=use,
        by=services.caller.by,
        has_webhook=has_webhook,
        traceparent=request.scope.get(TRACEPARENT),
        note=note,
        warnings=warnings_of(accepted) if warnings is None else warnings,
        fine_tune=fine_tune,
    )
    try:
        submitted = await services.db.write(submission.write)
    except InvalidSpec as invalid:
        raise accepted.refusal(invalid.problems) from invalid
    reached(Moment.AFTER_SUBMIT_COMMITS)
    services.wake_control()
    return submitted


def accept_for(services: Services, body: object) -> Accepted:
    """Returns the spec of a body, checked against the components that nodes have announced. Raises InvalidSpec."""
    if isinstance(body, dict):
        body.setdefault("project", services.project)
    accepted = accept(body, services.catalogues.current)
    if not services.caller.may_submit_to(accepted.spec.project):
        detail = f"must be the project of this request, which is {services.project!r}"
        raise InvalidSpec([Problem("/project", "not_your_project", detail, "leave it out")])
    return accepted


async def require_all(services: Services, accepted: Accepted) -> None:
    """Raises InvalidSpec if code, packages or files that the spec names are missing."""
    spec = accepted.spec
    with few_hints():
        problems = [*await missing_code(services, spec), *await missing_files(services, spec)]
    if problems:
        raise accepted.refusal(problems)


def idempotency(
    request: Request, raw: bytes, respond: Callable[[JobRow], BaseModel] = views.job
) -> IdempotencyUse | None:
    key = request.headers.get("idempotency-key")
    if key is None:
        return None
    if not (0 < len(key) <= MAX_KEY_LENGTH and key.isascii() and key.isprintable()):
        must = f"it must have 1 to {MAX_KEY_LENGTH} characters, all of them printable ASCII"
        raise InvalidHeader(f"the Idempotency-Key {key[:80]!r} cannot be used: {must}")
    return IdempotencyUse(key, sha256(raw).hexdigest(), respond=lambda row: respond(row).model_dump_json())


def created(submitted: Submitted, services: Services, response: Response, status: int, job: Job) -> Job | Response:
    """Returns the answer to a submission, with Location and ETag. A repeated request gets the stored first answer."""
    row = submitted.job
    # A request with a key that is valid for every project must name the job's project in the URL.
    where = "" if row.project == services.project else f"?project={row.project}"
    # A repeated request gets the stored body, so its ETag must be the ETag of that body.
    headers = {"Location": f"/jobs/{row.id}{where}", "ETag": etag(row.version)}
    if submitted.replayed:
        headers["Idempotency-Replayed"] = "true"
        if submitted.response:
            # The stored text is not parsed into a Job, because an older version of the service may have written it.
            headers["ETag"] = etag(json.loads(submitted.response)["version"])
            return Response(submitted.response, status, headers, JSON)
    response.headers.update(headers)
    return job


@router.get("/jobs/{job}", summary="One job")
async def get_job(request: Request, response: Response, job: JobPath) -> Job:
    services = services_of(request)
    return answered(response, *await services.db.read(look, project=services.project, job=job_id(job)))


def look(conn: Connection, project: str, job: JobId) -> tuple[JobRow, list[str]]:
    """Returns a job, and the names of the nodes on which it has slots."""
    row = jobs.get(conn, project, job)
    return row, attempts.nodes_of(conn, [job]).get(job, []) if row.state.holds_slots else []


def answered(response: Response, row: JobRow, nodes: list[str]) -> Job:
    """Returns the job, and sets its ETag on the response."""
    response.headers["ETag"] = etag(row.version)
    return views.job(row, nodes)


class _AnyField(Group):
    model_config = ConfigDict(json_schema_extra={"minProperties": 1})
    meant_by = JobSpec


_AMENDABLE = {name: JobSpec.model_fields[name] for name in ("name", "tags", "metadata", "priority")}
_FIELDS: Any = {name: (field.rebuild_annotation(), field) for name, field in _AMENDABLE.items()}
Amendment = create_model("Amendment", __base__=_AnyField, **_FIELDS)
"""The body of a PATCH. It is made from the spec's fields, so that both have the same rules."""


@router.patch(
    "/jobs/{job}",
    summary="Change name, tags, metadata or priority",
    **documented_body(
        Amendment, {"name": "first steps", "tags": ["demo"], "priority": 5}, required=True, parameters=[IF_MATCH]
    ),
)
async def amend_job(request: Request, response: Response, job: JobPath) -> Job:
    """Changes the fields that are sent, and keeps the others."""
    services = services_of(request)
    amendment = await read_model(request, Amendment)
    changes = amendment.model_dump(mode="json", include=amendment.model_fields_set)
    if not changes:
        hint = f"send one or more of {', '.join(_AMENDABLE)}"
        raise InvalidSpec([Problem("", "nothing_to_change", "the body has no field", hint)])
    version = _if_match(request)

    def write(conn: Connection) -> tuple[JobRow, list[str]]:
        amend(conn, services.project, job_id(job), changes, now_ms(), if_version=version, by=services.caller.by)
        return look(conn, services.project, job_id(job))

    row, nodes = await services.db.write(write)
    services.changed(row.id)
    return answered(response, row, nodes)


def _if_match(request: Request) -> int | None:
    header = request.headers.get("if-match")
    if header is None or header.strip() == "*":
        return None
    text = header.strip().removeprefix("W/").strip('"')
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        detail = f"If-Match {header!r} is not the ETag of a job"
        raise PreconditionFailed(detail, hint="send the ETag of GET /jobs/{id}")
    return int(text)


@router.delete(
    "/jobs/{job}",
    status_code=204,
    summary="Delete a job that has ended, with its files",
    openapi_extra={"parameters": [IF_MATCH]},
)
async def delete_job(request: Request, job: JobPath) -> Response:
    services = services_of(request)
    await remove(services, job_id(job), if_version=_if_match(request))
    return Response(status_code=204)


async def remove(services: Services, job: JobId, if_version: int | None = None) -> None:
    """Deletes a job, and then its folder. Raises NotFound, Conflict and PreconditionFailed."""
    await services.db.write(delete, services.project, job, now_ms(), if_version=if_version)
    reached(Moment.AFTER_VERB_COMMITS)
    services.changed(job)
    services.audit(f"job {job} of project {services.project} deleted")
    await remove_folder(services, job)


async def remove_folder(services: Services, job: JobId) -> None:
    """Deletes the folder of a job whose rows are deleted. What cannot be deleted now, `prune` deletes later.

    Rows are deleted first, so a crash in between leaves files without rows and never rows without files.
    """
    await asyncio.to_thread(delete_folder, services.settings.store, str(job_folder(job)))
