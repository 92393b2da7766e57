"""OpenAI's routes for uploads in parts. A complete upload becomes a file, like those of `POST /files`.

The parts are in the artifact store and their names in SQL, so that each request may reach another API process.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import Counter
from collections.abc import AsyncIterator, Callable
from functools import partial

from fastapi import APIRouter, Request
from sqlalchemy import Connection

from footplate.contract import layout
from footplate.contract.errors import FootplateError, InvalidSpec, NotFound, Problem
from footplate.contract.ids import FileId, UploadId, is_id, new_part_id, new_upload_id
from service.api.downloads import in_threads
from service.api.files import most_bytes, store_file, too_large
from service.api.form import FormFile
from service.api.openai import from_job
from service.api.openai.files import require_purpose, rows_name
from service.api.openai.models import MOST_PARTS, CompletedUpload, FileObject, NewUpload, UploadObject, UploadPart
from service.api.openai.rows import check_upload, remember
from service.api.uploads import Upload, keep, uploaded
from service.artifact_files import exactly, open_below
from service.deps import Services, StrictRoute, body_of, read_model, services_of
from service.jobs.remove_folders import delete_folder
from service.problems import BodyTooLarge
from service.store import uploads
from service.store.row_types import UploadPartRow, UploadRow
from service.store.times import now_ms

router = APIRouter(route_class=StrictRoute, include_in_schema=False)

ONE = "/v1/uploads/{upload}"
PART_BYTES = 64 * 1024 * 1024
FORM_BYTES = 64 * 1024
"""The room for the boundaries and headers of a form around a part."""
LIVES_MS = 3_600_000
"""The time for which a pending upload accepts parts, as at OpenAI."""
EXPIRED = "expired"
MEDIA_TYPES = ("text/jsonl", "application/jsonl", "application/x-ndjson", "application/json", "text/plain",
               "application/octet-stream")  # fmt: skip


class UploadEnded(FootplateError):
    code = "upload_ended"
    status = 409
    title = "The upload takes no more parts"


@router.post("/v1/uploads")
async def create_upload(request: Request) -> UploadObject:
    services = services_of(request)
    body = await read_model(request, NewUpload)
    require_purpose(body.purpose)
    if body.mime_type not in MEDIA_TYPES:
        detail = f"{body.mime_type[:80]!r} is not a type of JSON lines"
        raise InvalidSpec([Problem("/mime_type", "not_supported", detail, f"known: {', '.join(MEDIA_TYPES)}")])
    if body.bytes > (limit := most_bytes(services)):
        raise too_large(limit)
    row = UploadRow(
        new_upload_id(), services.project, rows_name(body.filename), body.bytes, now_ms(), uploads.PENDING
    )  # fmt: skip
    await services.db.write(uploads.insert_upload, row=row)
    return _shown(row)


@router.post(f"{ONE}/parts")
async def create_part(request: Request, upload: str) -> UploadPart:
    """Stores one part of at most 64 MiB."""
    services, owner = services_of(request), upload_id(upload)
    await services.db.read(_pending, services.project, owner)
    too_large = BodyTooLarge(f"a part may have at most {PART_BYTES // 1024**2} MiB", hint="send more parts")
    body = body_of(request, PART_BYTES + FORM_BYTES, too_large)
    form = FormFile(request.headers.get("content-type", ""), body)
    await form.name()
    part = new_part_id()
    # Not in the folder of the parts, because a cancel deletes that folder, perhaps while this part arrives.
    folder = services.settings.artifacts_path / layout.UPLOADS
    async with uploaded(form.pieces(), folder) as content:
        if content.bytes > PART_BYTES:
            raise too_large
        if content.bytes == 0:
            # Without bytes, any number of parts would fit into the upload.
            raise InvalidSpec([Problem("/data", "too_short", "the part has no bytes", "send a part of the file")])
        row = UploadPartRow(part, owner, content.bytes, now_ms())
        path = str(layout.parts_folder(owner) / part)
        await keep(services, path, content, partial(_store_part, project=services.project, row=row))
    return UploadPart(id=part, created_at=from_job.seconds(row.created_at), upload_id=owner)


@router.post(f"{ONE}/complete")
async def complete_upload(request: Request, upload: str) -> UploadObject:
    """Joins the parts, in the order of the request, to a file, and checks the lines of the file.

    The parts stay for a day. So a request that is repeated, because its answer was lost, makes the same file again.
    """
    services, owner = services_of(request), upload_id(upload)
    body = await read_model(request, CompletedUpload)
    row = await services.db.read(_pending, services.project, owner, or_completed=True)
    parts = _ordered(body, row, await services.db.read(uploads.parts_of, owner))
    digest = hashlib.md5(usedforsecurity=False)

    async def pieces() -> AsyncIterator[bytes]:
        for part in parts:
            async for piece in _content(services, part):
                digest.update(piece)
                yield piece

    def check(content: Upload) -> None:
        if body.md5 is not None and digest.hexdigest() != body.md5.lower():
            detail = f"is not the MD5 of the parts, which is {digest.hexdigest()}"
            raise InvalidSpec([Problem("/md5", "other_content", detail)])
        remember(content.sha256, check_upload(content.file))

    async def claim(file: FileId) -> None:
        # A refusal must come before the file is in a bucket, because nothing would name that file.
        await services.db.write(_complete, project=services.project, upload=owner, file=file)

    try:
        file_row, _ = await store_file(services, row.name, pieces(), check, claim=claim)
    except NotFound:
        # A cancel deletes the parts.
        await services.db.read(_pending, services.project, owner, or_completed=True)
        raise
    return _shown(row, status=uploads.COMPLETED, file=from_job.file(file_row))


def _complete(conn: Connection, project: str, upload: UploadId, file: FileId) -> None:
    """Ends an upload that becomes a file. Raises UploadEnded if it was cancelled, or has become another file."""
    row = uploads.get(conn, project, upload, hold=True)
    if row.status != uploads.PENDING and row.file_id != file:
        raise _ended(row, row.status)
    uploads.end(conn, upload, uploads.COMPLETED, file)


@router.post(f"{ONE}/cancel")
async def cancel_upload(request: Request, upload: str) -> UploadObject:
    services, owner = services_of(request), upload_id(upload)

    def write(conn: Connection) -> UploadRow:
        row = _pending(conn, services.project, owner, hold=True)
        uploads.end(conn, owner, uploads.CANCELLED)
        return row

    row = await services.db.write(write)
    # Control deletes the parts that cannot be deleted now.
    await asyncio.to_thread(delete_folder, services.settings.store, str(layout.parts_folder(owner)))
    return _shown(row, status=uploads.CANCELLED)


def _store_part(conn: Connection, project: str, row: UploadPartRow, put: Callable[[], None]) -> None:
    upload_row = _pending(conn, project, row.upload_id, hold=True)
    count, arrived_bytes = uploads.size_of(conn, row.upload_id)
    if count >= MOST_PARTS:
        hint = f"uploads.create() makes a new one; a part may have {PART_BYTES // 1024**2} MiB"
        detail = f"upload {upload_row.id} has {count:,} parts, and an upload has at most {MOST_PARTS:,}"
        raise InvalidSpec([Problem("/data", "too_many_parts", detail, hint)])
    if (arrived_bytes := arrived_bytes + row.bytes) > upload_row.bytes:
        detail = f"the parts have {arrived_bytes:,} bytes so far, and the upload was created for {upload_row.bytes:,}"
        raise InvalidSpec([Problem("/data", "too_long", detail)])
    put()
    uploads.insert_part(conn, row)


def upload_id(text: str) -> UploadId:
    if not is_id(text, "upload"):
        raise NotFound(f"there is no upload {text[:80]!r} in this project")
    return UploadId(text)


def _pending(
    conn: Connection, project: str, upload: UploadId, *, hold: bool = False, or_completed: bool = False
) -> UploadRow:
    """Returns an upload that accepts parts. Raises UploadEnded if the upload has ended or has expired.

    With `or_completed`, the upload may also be complete, so that its completion can be repeated.
    """
    row = uploads.get(conn, project, upload, hold=hold)
    usable = {uploads.PENDING, uploads.COMPLETED} if or_completed else {uploads.PENDING}
    if (status := _status(row)) not in usable:
        raise _ended(row, status)
    return row


def _ended(row: UploadRow, status: str) -> UploadEnded:
    return UploadEnded(f"upload {row.id} is {status} and cannot be changed", hint="uploads.create() makes a new one")


def _status(row: UploadRow) -> str:
    has_expired = row.status == uploads.PENDING and now_ms() >= row.created_at + LIVES_MS
    return EXPIRED if has_expired else row.status


def _ordered(body: CompletedUpload, row: UploadRow, arrived_parts: list[UploadPartRow]) -> list[UploadPartRow]:
    """Returns the parts in the order of the request. Raises InvalidSpec if they are not the whole upload."""
    by_id: dict[str, UploadPartRow] = {part.id: part for part in arrived_parts}
    problems = [
        Problem(f"/part_ids/{index}", "unknown_part", f"upload {row.id} has no part {name[:80]!r}")
        for index, name in enumerate(body.part_ids)
        if name not in by_id
    ]
    part, count = Counter(body.part_ids).most_common(1)[0]
    if not problems and count > 1:
        problems = [Problem("/part_ids", "duplicate_part", f"names part {part} {count} times", "name each part once")]
    if problems:
        raise InvalidSpec(problems)
    parts = [by_id[name] for name in body.part_ids]
    if (total := sum(part.bytes for part in parts)) != row.bytes:
        detail = f"the parts have {total:,} bytes, and the upload was created for {row.bytes:,}"
        raise InvalidSpec([Problem("/part_ids", "wrong_size", detail)])
    return parts


async def _content(services: Services, part: UploadPartRow) -> AsyncIterator[bytes]:
    path = str(layout.parts_folder(part.upload_id) / part.id)
    file = await asyncio.to_thread(open_below, services.settings.store, path)
    if file is None:
        raise NotFound(f"part {part.id} is missing in the artifact store", hint="upload the file again")
    with file:
        async for piece in in_threads(exactly(file, part.bytes, f"part {part.id}")):
            yield piece


def _shown(row: UploadRow, status: str | None = None, file: FileObject | None = None) -> UploadObject:
    return UploadObject(
        id=row.id,
        bytes=row.bytes,
        created_at=from_job.seconds(row.created_at),
        expires_at=from_job.seconds(row.created_at + LIVES_MS),
        filename=row.name,
        purpose=from_job.PURPOSE,
        status=status or _status(row),
        file=file,
    )
