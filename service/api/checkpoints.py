"""Routes that list, download, pin and delete a job's checkpoints."""

from __future__ import annotations

import asyncio
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
from service.api.documented import documented_body
from service.api.downloads import ANSWERS, TAR, LinkTicket, attachment, download, in_threads, tar_of
from service.deps import JobPath, Services, StrictRoute, job_id, read_model, services_of
from service.jobs import pins
from service.jobs.checkpoints import drop, look, pin, remove_links, require_committed, unpin
from service.jobs.manifest import opened, sealed
from service.store import checkpoints, jobs
from service.store.checkpoints import GONE
from service.store.row_types import CheckpointRow
from service.store.times import now_ms

router = APIRouter(route_class=StrictRoute, tags=["checkpoints"])

ONE = "/jobs/{job}/checkpoints/{checkpoint}"
Named = Annotated[
    str,
    PathParameter(
        description="The checkpoint's id; or `latest` or `best`, which are committed checkpoints.",
        examples=["latest", "ckpt_019a9d0c5f7e7c6d8a53e0a1b2c3d4e5"],
    ),
]


class Pinning(Group):
    pinned: bool
    """A pinned checkpoint stays until it is unpinned or its job is deleted, even if the job keeps few checkpoints."""


@router.get("/jobs/{job}/checkpoints", summary="The job's checkpoints, newest first")
async def list_checkpoints(
    request: Request,
    job: JobPath,
    deleted: Annotated[bool, Query(description="Lists deleted checkpoints, too, whose files are gone.")] = False,
) -> CheckpointList:
    """Lists the checkpoints whose files exist.

    Deleted ones are listed with `deleted=true`, and can be read by their id.
    """
    services = services_of(request)

    def read(conn: Connection) -> CheckpointList:
        jobs.get(conn, services.project, job_id(job))
        rows = checkpoints.of_job(conn, job_id(job))
        data = tuple(views.checkpoint(row) for row in rows if deleted or row.status not in GONE)
        return CheckpointList(data=data, next_cursor=None)

    return await services.db.read(read)


@router.get(ONE, summary="One checkpoint")
async def get_checkpoint(request: Request, job: JobPath, checkpoint: Named) -> Checkpoint:
    return views.checkpoint(await _row(services_of(request), job_id(job), checkpoint))


@router.get(f"{ONE}/files", summary="The checkpoint's files, with their sizes and sha256 when it was committed")
async def list_checkpoint_files(
    request: Request,
    job: JobPath,
    checkpoint: Named,
    cursor: Annotated[str | None, Query(description="next_cursor of the page before.", pattern="^[0-9]{1,5}$")] = None,
    limit: Annotated[int, Query(description="The most files of a page.", ge=1, le=1000)] = 1000,
) -> CheckpointFileList:
    row, files = await _contents(request, job, checkpoint)
    first = int(cursor or 0)
    data = tuple(files[first : first + limit])
    next_cursor = str(first + limit) if first + limit < len(files) else None
    return CheckpointFileList(checkpoint=row.id, data=data, next_cursor=next_cursor)


@router.head(f"{ONE}/files/{{path:path}}", include_in_schema=False)
@router.get(
    f"{ONE}/files/{{path:path}}",
    summary="One file, or a range of it; its ETag is its sha256",
    **ANSWERS,
)
async def download_checkpoint_file(
    request: Request, job: JobPath, checkpoint: Named, path: str, ticket: LinkTicket = None
) -> Response:
    row, files = await _contents(request, job, checkpoint)
    sealed_file = next((file for file in files if file.path == path), None)
    if sealed_file is None:
        names = [file.path for file in files]
        hint = did_you_mean(path, names) or f"it has: {', '.join(names[:20])}"
        raise NotFound(f"checkpoint {row.id} has no file {path[:200]!r}", hint=hint)
    file = await asyncio.to_thread(opened, services_of(request).settings.store, row, sealed_file)
    return download(request, file, path.rpartition("/")[2], sha256=sealed_file.sha256)


@router.head(f"{ONE}/archive", include_in_schema=False)
@router.get(
    f"{ONE}/archive",
    summary="All files of the checkpoint as one tar",
    responses={200: {"content": {TAR: {}}}},
)
async def download_checkpoint(request: Request, job: JobPath, checkpoint: Named, ticket: LinkTicket = None) -> Response:
    """Sends a tar that is made while it is sent.

    If the job still runs and keeps few checkpoints, pin the checkpoint first. If the checkpoint is deleted meanwhile,
    the download ends before the length in Content-Length.
    """
    row, files = await _contents(request, job, checkpoint)
    open_file = partial(opened, services_of(request).settings.store, row)
    length, pieces = tar_of(f"checkpoint-{row.step}", files, row.created_at // 1000, open_file)
    # A missing file can be reported only before the answer begins.
    await asyncio.to_thread(lambda: [open_file(file).close() for file in files])
    headers = {
        "Content-Disposition": attachment(f"{row.job_id}-checkpoint-{row.step}.tar"),
        "Content-Length": str(length),
        "Accept-Ranges": "none",
    }
    if request.method == "HEAD":
        return Response(None, 200, headers, TAR)
    return StreamingResponse(in_threads(pieces), 200, headers, TAR)


@router.delete(
    ONE,
    status_code=202,
    summary="Delete a checkpoint; the answer says how many bytes that frees",
)
async def delete_checkpoint(request: Request, job: JobPath, checkpoint: Named) -> DeletedCheckpoint:
    """Deletes a checkpoint. The checkpoint leaves the list at once, and its folder is deleted soon after.

    The answer is 409 if the checkpoint is pinned, or if it is the only one from which an unfinished job can continue.
    """
    services, owner = services_of(request), job_id(job)
    deletion = await services.db.write(drop, services.project, owner, checkpoint, now_ms(), by=services.caller.by)
    services.changed(owner)
    row = deletion.row
    services.audit(f"checkpoint {row.id} ({deletion.frees_bytes} bytes) of job {owner} deleted")
    return views.shown(row, DeletedCheckpoint, pinned=row.is_pinned, frees_bytes=deletion.frees_bytes)


@router.patch(
    ONE,
    summary="Pin or unpin a checkpoint",
    **documented_body(Pinning, {"pinned": True}, required=True),
)
async def pin_checkpoint(request: Request, job: JobPath, checkpoint: Named) -> Checkpoint:
    services, owner = services_of(request), job_id(job)
    body = await read_model(request, Pinning)
    row = await (_pin if body.pinned else _unpin)(services, owner, checkpoint)
    services.changed(owner)
    services.audit(f"checkpoint {row.id} of job {owner} {'pinned' if body.pinned else 'unpinned'}")
    return views.checkpoint(row)


async def _pin(services: Services, job: JobId, checkpoint: str) -> CheckpointRow:
    """Links the files into the pinned folder, and then marks the row as pinned.

    A crash between the two leaves links whose row is not pinned. `prune` removes such links. If another request unpins
    the checkpoint and deletes the links in between, they are made again.
    """
    artifacts = services.settings.store
    while not (row := require_committed(await _row(services, job, checkpoint))).is_pinned:
        pinned_path = await asyncio.to_thread(pins.link_pinned, artifacts, row)
        has_links = partial(pins.has_links, artifacts, pinned_path)
        await services.db.write(
            pin, services.project, job, row.id, pinned_path, has_links, now_ms(), by=services.caller.by
        )
        checkpoint = row.id
    return row


async def _unpin(services: Services, job: JobId, checkpoint: str) -> CheckpointRow:
    """Marks the row as not pinned, and then deletes the hard links in the pinned folder if they are not needed."""
    artifacts, row = services.settings.store, await _row(services, job, checkpoint)
    path_before = await asyncio.to_thread(pins.path_before_pin, artifacts, row)
    by = services.caller.by
    new_row = await services.db.write(unpin, services.project, job, row.id, path_before, now_ms(), by=by)
    await services.db.write(remove_links, row=new_row, remove=partial(pins.remove, artifacts))
    return new_row


async def _contents(request: Request, job: str, checkpoint: str) -> tuple[CheckpointRow, list[CheckpointFile]]:
    services = services_of(request)
    row = await _row(services, job_id(job), checkpoint)
    return row, await asyncio.to_thread(sealed, services.settings.store, row)


async def _row(services: Services, job: JobId, checkpoint: str) -> CheckpointRow:
    return await services.db.read(look, project=services.project, job_id=job, name=checkpoint)
