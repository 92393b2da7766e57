"""Routes for uploaded files, which hold rows of data. Equal bytes are one file, and specs name files by their ids."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import IO, Annotated, Any

from fastapi import APIRouter, Query, Request
from fastapi import Path as PathParameter
from starlette.responses import Response

from footplate.contract import layout
from footplate.contract.errors import InvalidSpec, NotFound, Problem
from footplate.contract.files import file_id, kind_of, named_in
from footplate.contract.ids import FileId, is_file
from footplate.contract.resources.artifacts import File, FileList
from footplate.contract.rules import ROOTS
from footplate.contract.spec import JobSpec
from service.api.documented import already_stored_response
from service.api.downloads import ANSWERS, BINARY, download
from service.api.form import MEDIA_TYPE, FormFile
from service.api.pages import after, following
from service.api.uploads import Upload, discard, keep, uploaded
from service.api.views import shown
from service.artifact_files import CannotRead, open_below
from service.deps import Services, StrictRoute, body_of, media_type_of, services_of
from service.jobs import node_files, references
from service.jobs.file_kinds import check_content, checked_name
from service.jobs.mapped_columns import missing_columns
from service.jobs.rows import no_row_to_train_on, wrong_columns, wrong_rows
from service.problems import BodyTooLarge, InvalidQuery
from service.row_reports import row_report
from service.store.content import FILES, set_report
from service.store.row_types import FileRow
from service.store.times import now_ms

router = APIRouter(route_class=StrictRoute, tags=["files"])

_CHECKS = ThreadPoolExecutor(4, thread_name_prefix="upload-checks")
"""The threads that check uploads. Checks of large files take minutes, so other threads write the files."""
MIB = 1024 * 1024
LOOK_SECONDS = 2.0
TOKENIZER = "tokenizer.json"
PLAIN: dict[str, Any] = {"type": "string", "format": "binary"}
FORM: dict[str, Any] = {"type": "object", "required": ["file"], "properties": {"file": PLAIN}}
BODY: dict[str, Any] = {
    "requestBody": {"required": True, "content": {BINARY: {"schema": PLAIN}, MEDIA_TYPE: {"schema": FORM}}}
}
FilePath = Annotated[str, PathParameter(description="A file's id.", examples=[f"file_{'0' * 64}.jsonl"])]
Name = Annotated[
    str | None,
    Query(description="The file's name, if the body is not a form: rows.jsonl, .csv, .tsv, .parquet or .txt."),
]
TokenizerName = Annotated[
    str | None,
    Query(
        description="Counts the tokens of all texts with this tokenizer. The service must see its folder below models://.",
        examples=["models://bert-base-uncased"],
        max_length=1000,
    ),
]


@router.post(
    "/files",
    status_code=201,
    summary="Upload JSON lines, CSV, Parquet or text, as it is or as a form",
    response_model=File,
    responses=already_stored_response(File),
    openapi_extra=BODY,
)
async def create_file(request: Request, response: Response, name: Name = None, tokenizer: TokenizerName = None) -> File:
    """Stores a file by its content, and reports its rows: columns, types, and the first bad rows with their numbers.

    The same bytes again are the same file under its first name: the answer is 200.
    """
    services = services_of(request)
    name, body = await _named(request, name, most_bytes(services))
    file, is_new = await store_file(services, name, body, tokenizer=tokenizer)
    response.status_code = 201 if is_new else 200
    response.headers["Location"] = f"/files/{file.id}"
    return shown(file, File)


def most_bytes(services: Services) -> int:
    return int(services.settings.upload_max_mb * MIB)


async def store_file(
    services: Services,
    name: str,
    pieces: AsyncIterator[bytes],
    check: Callable[[Upload], None] | None = None,
    tokenizer: str | None = None,
    claim: Callable[[FileId], Awaitable[None]] | None = None,
) -> tuple[FileRow, bool]:
    """Stores a file with a report of its rows, and returns True if it is new.

    `check` runs in a thread, and may refuse the content. Without a check, the content must fit the name's suffix.
    `claim` runs after the check and before anything is stored, and may refuse the file, too.
    """
    tokens = None if tokenizer is None else await asyncio.to_thread(_tokenizer_file, services, tokenizer)
    kind = kind_of(name)
    assert kind is not None
    folder = services.settings.artifacts_path / layout.UPLOADS
    async with uploaded(pieces, folder) as upload:
        if check is not None:
            await asyncio.get_running_loop().run_in_executor(_CHECKS, check, upload)
        else:
            await asyncio.to_thread(check_content, upload.file, kind, upload.bytes)
        file = file_id(upload.sha256, kind)
        if claim is not None:
            await claim(file)
        report = await row_report(upload.file.name, kind, tokens)
        row = FileRow(
            services.project, file, upload.sha256, upload.bytes, name, kind, now_ms(), services.caller.by,
            report["rows"], report["bad_rows"], json.dumps({**report, "tokenizer": tokenizer}),
        )  # fmt: skip
        stored_row, is_new = await keep(services, str(layout.UPLOADS / file), upload, partial(FILES.keep, row=row))
    if _says_more(report, stored_row.report, has_tokens=tokenizer is not None):
        await services.db.write(set_report, row=row)
        stored_row = replace(stored_row, rows=row.rows, bad_rows=row.bad_rows, report=row.report)
    if is_new:
        services.audit(f"file {file} ({name}) of project {services.project} stored")
    return stored_row, is_new


def _says_more(report: dict[str, Any], stored_report: str | None, *, has_tokens: bool) -> bool:
    """Returns True if a new report of a file's rows must replace the stored one."""
    old_report = None if stored_report is None else json.loads(stored_report)
    if old_report is None or old_report["is_complete"] != report["is_complete"]:
        return old_report is None or bool(report["is_complete"])
    return has_tokens or bool(report["rows"] > old_report["rows"])


async def _named(request: Request, name: str | None, limit: int) -> tuple[str, AsyncIterator[bytes]]:
    """Returns the name of the uploaded file, and its content as it arrives."""
    body = body_of(request, limit, too_large(limit))
    if media_type_of(request) == MEDIA_TYPE:
        form = FormFile(request.headers["content-type"], body)
        name_in_form = await form.name()
        return checked_name(name or name_in_form), form.pieces()
    if name is None:
        hint = "curl --data-binary @rows.jsonl '…/files?name=rows.jsonl', or curl -F file=@rows.jsonl …/files"
        raise InvalidSpec([Problem("/query/name", "missing", "the file has no name", hint)])
    return checked_name(name), body


def _tokenizer_file(services: Services, name: str) -> Path:
    """Returns the tokenizer.json of a folder below models://. Raises InvalidQuery if the service cannot read one."""
    folder = node_files.seen_path(name, services.catalogues.roots)
    if folder is not None and (file := folder / TOKENIZER).is_file():
        return file
    detail = f"{name[:200]!r} is not a folder below models:// in which the service finds a {TOKENIZER}"
    hint = "leave tokenizer out: the report then has everything but the numbers of tokens"
    raise InvalidQuery([Problem("/query/tokenizer", "no_tokenizer", detail, hint)])


def too_large(limit: int) -> BodyTooLarge:
    hint = "put the file below data:// on the nodes, or ask the operator to raise FOOTPLATE_UPLOAD_MAX_MB"
    return BodyTooLarge(f"a file may have at most {limit // MIB:,} MiB", hint=hint)


@router.get("/files", summary="Files, newest first")
async def list_files(
    request: Request,
    cursor: Annotated[str | None, Query(description="next_cursor of the page before.", max_length=120)] = None,
    limit: Annotated[int, Query(description="The most files of a page.", ge=1, le=200)] = 50,
) -> FileList:
    services = services_of(request)
    rows = await services.db.read(FILES.page, services.project, limit + 1, after(cursor, is_file))
    next_cursor = following([(row.created_at, row.id) for row in rows], limit)
    return FileList(data=tuple(shown(replace(row, report=None), File) for row in rows[:limit]), next_cursor=next_cursor)


@router.get("/files/{file}", summary="One file")
async def get_file(request: Request, file: FilePath) -> File:
    return shown(await file_row(services_of(request), file), File)


@router.head("/files/{file}/content", include_in_schema=False)
@router.get("/files/{file}/content", summary="The file's content, or a range of it", **ANSWERS)
async def download_file(request: Request, file: FilePath) -> Response:
    services = services_of(request)
    row = await file_row(services, file)
    content = await asyncio.to_thread(content_of, services, row)
    return download(request, content, row.name, sha256=row.sha256)


def content_of(services: Services, row: FileRow) -> IO[bytes]:
    """Returns the content of an uploaded file, opened. Raises NotFound if it is missing in the artifact store."""
    content = open_below(services.settings.store, str(layout.UPLOADS / row.id))
    if content is None:
        raise NotFound(
            f"the content of file {row.id} is missing in the artifact store", hint="POST the same file again"
        )
    return content


@router.delete("/files/{file}", status_code=204, summary="Delete a file")
async def delete_file(request: Request, file: FilePath) -> Response:
    """Deletes the file. The answer is 409 while an unfinished job names the file."""
    await remove_file(services_of(request), file)
    return Response(status_code=204)


async def remove_file(services: Services, file: str) -> None:
    row = await file_row(services, file)
    await discard(services, FILES, row.id, str(layout.UPLOADS / row.id))
    services.audit(f"file {row.id} ({row.name}) of project {services.project} deleted")


async def missing_files(services: Services, spec: JobSpec) -> list[Problem]:
    """Returns problems for files in the spec that the project lacks, that nodes may not fetch, or that no node has."""
    arguments = spec.texts
    problems = references.not_fetched(services.settings, services.catalogues.announced, arguments)
    problems += references.not_listed(services.settings, arguments)
    if any(named_in(arguments)):
        problems += await services.db.read(references.missing_files, project=spec.project, arguments=arguments)
        if not problems and spec.data.map:
            problems += await services.db.read(missing_columns, spec=spec)
        if not problems and spec.data.split is not None:
            problems += await services.db.read(no_row_to_train_on, spec=spec)
        if not problems and spec.library_trainer is not None and services.catalogues.current is not None:
            catalogue = services.catalogues.current
            problems += await services.db.read(wrong_columns, spec=spec, catalogue=catalogue)
            problems += await _found_in_time(partial(wrong_rows, spec, catalogue, services.settings.store))
    if services.catalogues.roots and any(argument.text.startswith(ROOTS) for argument in arguments):
        problems += await _found_in_time(partial(node_files.missing, arguments, services.catalogues.roots))
    return problems


async def _found_in_time(look: Callable[[], list[Problem]]) -> list[Problem]:
    """Returns the problems that `look` finds in files. Returns [] if reading the files fails or takes too long."""
    try:
        return await asyncio.wait_for(asyncio.to_thread(look), LOOK_SECONDS)
    except (TimeoutError, CannotRead):
        return []


async def file_row(services: Services, file: str) -> FileRow:
    if not is_file(file):
        raise NotFound(f"there is no file {file[:100]!r}", hint="GET /files lists all files and their ids")
    return await services.db.read(FILES.get, project=services.project, key=FileId(file))
