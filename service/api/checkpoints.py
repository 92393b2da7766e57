"""Checkpoints: listed, downloaded file by file or as one tar, kept for good, let go."""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from typing import Annotated

from fastapi import APIRouter, Query, Request
from fastapi import Path as PathParameter
from sqlalchemy import Connection
from starlette.responses import Response, StreamingResponse

from footplate.contract.errors import NotFound, did_you_mean
from footplate.contract.fields import Group
from footplate.contract.ids import JobId
from footplate.contract.resources.artifacts import (
    Checkpoint,
    CheckpointFile,
    CheckpointFileList,
    CheckpointList,
    DeletedCheckpoint,
)
from service.api import views
from service.api.archive import MEDIA_TYPE, Archive
from service.api.documented import takes
from service.api.downloads import ANSWERS, attachment, download, in_threads
from service.artifact_files import Store
from service.deps import JobPath, Services, StrictRoute, job_id, read_model, services_of
from service.jobs import pins
from service.jobs.checkpoints import drop, look, pin, require_committed, unpin
from service.jobs.manifest import SealedFile, opened, sealed
from service.store import checkpoints, jobs
from service.store.rows import CheckpointRow
from service.store.times import now_ms

router = APIRouter(route_class=StrictRoute, tags=["checkpoints"])
audit = logging.getLogger("footplate.audit")

ONE = "/jobs/{job}/checkpoints/{checkpoint}"
Named = Annotated[
    str,
    PathParameter(
        description="Its id; or `latest` or `best`, which mean committed ones.",
        examples=["latest", "ckpt_019a9d0c5f7e7c6d8a53e0a1b2c3d4e5"],
    ),
]


class Pinning(Group):
    pinned: bool
    """A pinned one stays whatever its job's limits say, until it is not pinned any more or its job is deleted."""


@router.get(
    "/jobs/{job}/checkpoints",
    operation_id="list_checkpoints",
    summary="Its checkpoints, newest first",
)
async def list_checkpoints(request: Request, job: JobPath) -> CheckpointList:
    services = services_of(request)

    def read(conn: Connection) -> CheckpointList:
        jobs.get(conn, services.project, job_id(job))
        data = tuple(map(views.checkpoint, checkpoints.of_job(conn, job_id(job))))
        return CheckpointList(data=data, next_cursor=None)

    return await services.db.read(read)


@router.get(ONE, operation_id="get_checkpoint", summary="One checkpoint")
async def get_checkpoint(request: Request, job: JobPath, checkpoint: Named) -> Checkpoint:
    return views.checkpoint(await _row(services_of(request), job_id(job), checkpoint))


@router.get(
    f"{ONE}/files",
    operation_id="list_checkpoint_files",
    summary="Its files, with their sizes and what they were when it was committed",
)
async def list_checkpoint_files(
    request: Request,
    job: JobPath,
    checkpoint: Named,
    cursor: Annotated[str | None, Query(description="next_cursor of the page before.", pattern="^[0-9]{1,5}$")] = None,
    limit: Annotated[int, Query(ge=1, le=1000)] = 1000,
) -> CheckpointFileList:
    row, files = await _contents(request, job, checkpoint)
    first = int(cursor or 0)
    page = files[first : first + limit]
    found = tuple(CheckpointFile(path=one.path, bytes=one.bytes, sha256=one.sha256) for one in page)
    more = str(first + limit) if first + limit < len(files) else None
    return CheckpointFileList(checkpoint=row.id, data=found, next_cursor=more)


@router.head(f"{ONE}/files/{{path:path}}", include_in_schema=False)
@router.get(
    f"{ONE}/files/{{path:path}}",
    operation_id="download_checkpoint_file",
    summary="One file, or a range of it; its ETag is its sha256",
    **ANSWERS,
)
async def download_checkpoint_file(request: Request, job: JobPath, checkpoint: Named, path: str) -> Response:
    row, files = await _contents(request, job, checkpoint)
    found = next((one for one in files if one.path == path), None)
    if found is None:
        names = [one.path for one in files]
        hint = did_you_mean(path, names) or f"it has: {', '.join(names[:20])}"
        raise NotFound(f"checkpoint {row.id} has no file {path[:200]!r}", hint=hint)
    file = await asyncio.to_thread(opened, _artifacts(request), row, found)
    return download(request, file, path.rpartition("/")[2], sha256=found.sha256)


@router.head(f"{ONE}/archive", include_in_schema=False)
@router.get(
    f"{ONE}/archive",
    operation_id="download_checkpoint",
    summary="All of its files as one tar",
    responses={200: {"content": {MEDIA_TYPE: {}}}},
)
async def download_checkpoint(request: Request, job: JobPath, checkpoint: Named) -> Response:
    """Made while it is sent. Of a job that goes on and keeps few, pin it first: one that is rotated meanwhile breaks
    off, and is shorter than Content-Length says."""
    row, files = await _contents(request, job, checkpoint)
    archive = Archive(f"checkpoint-{row.step}", files, row.created_at // 1000)
    await asyncio.to_thread(_look_at_all, _artifacts(request), row, files)
    headers = {
        "Content-Disposition": attachment(f"{row.job_id}-checkpoint-{row.step}.tar"),
        "Content-Length": str(len(archive)),
        "Accept-Ranges": "none",
    }
    if request.method == "HEAD":
        return Response(None, 200, headers, MEDIA_TYPE)
    pieces = archive.pieces(partial(opened, _artifacts(request), row))
    return StreamingResponse(in_threads(pieces), 200, headers, MEDIA_TYPE)


def _look_at_all(artifacts: Store, row: CheckpointRow, files: list[SealedFile]) -> None:
    """While there is still an answer to say it in."""
    for one in files:
        opened(artifacts, row, one).close()


@router.delete(
    ONE,
    status_code=202,
    operation_id="delete_checkpoint",
    summary="Let go of it; the answer says what that frees",
)
async def delete_checkpoint(request: Request, job: JobPath, checkpoint: Named) -> DeletedCheckpoint:
    """409 while it is pinned, or the only one that a job which is not over could continue from. Its folder goes in a
    moment; what is known of it stays."""
    services, one = services_of(request), job_id(job)
    write = partial(
        drop, project=services.project, job_id=one, name=checkpoint, now=now_ms(), by=services.caller.by
    )  # fmt: skip
    dropped = await services.db.write(write)
    services.changed(one)
    row = dropped.row
    audit.info("checkpoint %s of job %s deleted by %s: %d bytes", row.id, one, services.caller.by, dropped.frees_bytes)
    return DeletedCheckpoint(**views.checkpoint_fields(row), frees_bytes=dropped.frees_bytes)


@router.patch(
    ONE,
    operation_id="pin_checkpoint",
    summary="Keep it for good, or not any more",
    **takes(Pinning, required=True),
)
async def pin_checkpoint(request: Request, job: JobPath, checkpoint: Named) -> Checkpoint:
    services, one = services_of(request), job_id(job)
    given = await read_model(request, Pinning)
    row = await _row(services, one, checkpoint)
    row = await (_pin if given.pinned else _unpin)(services, row)
    services.changed(one)
    word = "pinned" if given.pinned else "not pinned any more"
    audit.info("checkpoint %s of job %s %s by %s", row.id, one, word, services.caller.by)
    return views.checkpoint(row)


async def _pin(services: Services, row: CheckpointRow) -> CheckpointRow:
    """First its files, then its row. Who dies in between leaves names of files that prune finds."""
    aside = await asyncio.to_thread(pins.put_aside, services.settings.store, require_committed(row))
    write = partial(pin, project=services.project, job_id=row.job_id, name=row.id, aside=aside, now=now_ms())
    return await services.db.write(partial(write, by=services.caller.by))


async def _unpin(services: Services, row: CheckpointRow) -> CheckpointRow:
    """First its row, then what only pinned ones have."""
    artifacts = services.settings.store
    back = await asyncio.to_thread(pins.lies_where_it_was, artifacts, row)
    write = partial(unpin, project=services.project, job_id=row.job_id, name=row.id, back=back, now=now_ms())
    found = await services.db.write(partial(write, by=services.caller.by))
    if not found.is_pinned and not found.lies_aside:
        await asyncio.to_thread(pins.remove, artifacts, found)
    return found


async def _contents(request: Request, job: str, checkpoint: str) -> tuple[CheckpointRow, list[SealedFile]]:
    row = await _row(services_of(request), job_id(job), checkpoint)
    return row, await asyncio.to_thread(sealed, _artifacts(request), row)


async def _row(services: Services, job: JobId, checkpoint: str) -> CheckpointRow:
    return await services.db.read(partial(look, project=services.project, job_id=job, name=checkpoint))


def _artifacts(request: Request) -> Store:
    return services_of(request).settings.store
