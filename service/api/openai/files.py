"""OpenAI's routes for files. A file here is a file of `POST /files`, and its lines are checked when it is uploaded.

The results file of a job has its metrics as CSV, with OpenAI's columns. Each request makes it from the job's events.
"""

from __future__ import annotations

import asyncio
import csv
import io
import json
from typing import Annotated, Literal

from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from footplate.contract.errors import Problem
from footplate.contract.events import METRIC_KINDS
from footplate.contract.files import kind_of
from footplate.contract.ids import JobId, is_id
from service.api.downloads import download
from service.api.files import FilePath, content_of, file_row, most_bytes, remove_file, store_file, too_large
from service.api.form import FormFile
from service.api.openai import from_job
from service.api.openai.models import Deleted, FileObject, ListPage
from service.api.openai.rows import check_upload, remember
from service.api.uploads import Upload
from service.deps import Services, StrictRoute, body_of, services_of
from service.jobs.file_kinds import InvalidFile, checked_name
from service.problems import InvalidQuery
from service.store import events, jobs
from service.store.content import FILES

router = APIRouter(route_class=StrictRoute, include_in_schema=False)

PURPOSES = ("assistants", "batch", from_job.PURPOSE, "vision", "user_data", "evals")
MOST = 10_000
COLUMNS = {
    "train_loss": "train_loss",
    "train_accuracy": "train_mean_token_accuracy",
    "valid_loss": "valid_loss",
    "valid_mean_token_accuracy": "valid_mean_token_accuracy",
}
"""The columns of a results file after `step`, each with its name in events."""
REWARD_COLUMNS = {"train_mean_reward": "train_mean_reward", "valid_mean_reward": "valid_mean_reward"}
"""The further columns of a job that learns from rewards."""
EVENTS_AT_ONCE = 10_000


@router.post("/v1/files")
async def create_file(request: Request) -> FileObject:
    """Stores a file of rows to train on. Raises InvalidRows, which names the first line that cannot be used."""
    services = services_of(request)
    limit = most_bytes(services)
    body = body_of(request, limit, too_large(limit))
    form = FormFile(request.headers.get("content-type", ""), body, text_fields=("purpose",))
    name = rows_name(await form.name())

    def check(upload: Upload) -> None:
        require_purpose(form.fields.get("purpose"))
        remember(upload.sha256, check_upload(upload.file))

    row, _ = await store_file(services, name, form.pieces(), check)
    return from_job.file(row)


def rows_name(name: str) -> str:
    """Returns the file's name with the suffix of JSON lines, which OpenAI does not require. Raises InvalidFile."""
    if kind_of(name) not in (None, "jsonl"):
        detail, hint = f"{name[:80]!r} is not a file of JSON lines", "upload JSON lines, in a file such as rows.jsonl"
        raise InvalidFile([Problem("/file", "unknown_kind", detail, hint)])
    return checked_name(name if kind_of(name) else f"{name}.jsonl")


def require_purpose(purpose: str | None) -> None:
    if purpose != from_job.PURPOSE:
        detail = "is missing" if purpose is None else f"{purpose[:40]!r} is not supported here"
        raise InvalidFile([Problem("/purpose", "not_supported", detail, f"purpose={from_job.PURPOSE!r}")])


@router.get("/v1/files")
async def list_files(
    request: Request,
    after: Annotated[str | None, Query(max_length=200)] = None,
    limit: Annotated[int, Query(ge=1, le=MOST)] = MOST,
    order: Literal["asc", "desc"] = "desc",
    purpose: Annotated[str | None, Query(max_length=40)] = None,
) -> ListPage[FileObject]:
    services = services_of(request)
    if purpose not in (None, *PURPOSES):
        detail = f"{purpose!r} is not a purpose; known: {', '.join(PURPOSES)}"
        raise InvalidQuery([Problem("/query/purpose", "invalid_parameter", detail)])
    if purpose not in (None, from_job.PURPOSE):
        return ListPage.of([], has_more=False)
    place = None
    if after is not None:
        last_file = await file_row(services, after)
        place = (last_file.created_at, last_file.id)
    rows = await services.db.read(FILES.page, services.project, limit + 1, place, oldest_first=order == "asc")
    return ListPage.of([from_job.file(row) for row in rows[:limit]], has_more=len(rows) > limit)


@router.get("/v1/files/{file}")
async def get_file(request: Request, file: FilePath) -> FileObject:
    services = services_of(request)
    if (owner := _owner_of_results(file)) is not None:
        results, _ = await _results(services, owner)
        return results
    return from_job.file(await file_row(services, file))


@router.get("/v1/files/{file}/content")
async def get_file_content(request: Request, file: FilePath) -> Response:
    services = services_of(request)
    if (owner := _owner_of_results(file)) is not None:
        _, table = await _results(services, owner)
        return Response(table, media_type="text/csv")
    row = await file_row(services, file)
    content = await asyncio.to_thread(content_of, services, row)
    return download(request, content, row.name, sha256=row.sha256)


@router.delete("/v1/files/{file}")
async def delete_file(request: Request, file: FilePath) -> Deleted:
    """Deletes the file. The answer is 409 while an unfinished job names the file."""
    await remove_file(services_of(request), file)
    return Deleted(id=file, object="file")


def _owner_of_results(file: str) -> JobId | None:
    """Returns the job whose metrics the file holds, or None for an uploaded file."""
    job = file.removeprefix(from_job.results_id(JobId("")))
    return JobId(job) if job != file and is_id(job, "job") else None


async def _results(services: Services, job_id: JobId) -> tuple[FileObject, bytes]:
    """Returns the results file of a job with its metrics so far, and the file's content.

    Raises NotFound, also for another project's job.
    """
    row, last_no = await services.db.read(jobs.get, services.project, job_id), 0
    steps: dict[int, dict[str, float]] = {}
    while page := await services.db.read(events.after, job_id, last_no, EVENTS_AT_ONCE, METRIC_KINDS):
        for event in page:
            steps.setdefault(event.step or 0, {}).update(from_job.numbers(json.loads(event.data)))
        last_no = page[-1].no
    content = _csv(steps)
    created_at = from_job.seconds(row.finished_at or row.updated_at)
    file = FileObject(
        id=from_job.results_id(row.id), bytes=len(content), created_at=created_at,
        filename="step_metrics.csv", purpose="fine-tune-results",
    )  # fmt: skip
    return file, content


def _csv(steps: dict[int, dict[str, float]]) -> bytes:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    has_rewards = any(values.keys() & REWARD_COLUMNS.keys() for values in steps.values())
    columns = COLUMNS | REWARD_COLUMNS if has_rewards else COLUMNS
    writer.writerow(["step", *columns])
    for step in sorted(steps):
        values = [steps[step].get(name) for name in columns.values()]
        if any(value is not None for value in values):
            writer.writerow([step, *values])
    return text.getvalue().encode()
