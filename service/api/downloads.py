"""Answers with files as attachments: one file, whole or by a range, or many files as one tar."""

from __future__ import annotations

import asyncio
import re
import tarfile
from base64 import b64encode
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from email.utils import formatdate
from typing import IO, Annotated, Any
from urllib.parse import quote

from fastapi import Query
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from footplate.contract.resources.artifacts import CheckpointFile
from service.artifact_files import about, exactly
from service.deps import NO_NUL
from service.problems import RangeNotSatisfiable

BINARY = "application/octet-stream"
TAR = "application/x-tar"
_END_OF_TAR = bytes(2 * tarfile.BLOCKSIZE)
ANSWERS: dict[str, Any] = {
    "responses": {
        200: {"content": {BINARY: {}}},
        206: {"description": "The range.", "content": {BINARY: {}}},
        304: {"description": "If-None-Match has the file's ETag."},
    }
}
"""The answers of a download, for a route's decorator."""
LinkTicket = Annotated[
    str | None,
    Query(description="A ticket of POST /tickets instead of a key, for a link in a browser.", json_schema_extra=NO_NUL),
]
"""Declared by the routes that a link may open. The guard checks the ticket before the route (service/auth.py)."""
_RANGE = re.compile(r"\s*([0-9]{0,18})-([0-9]{0,18})\s*")


def download(
    request: Request, file: IO[bytes], name: str, *, sha256: str | None = None, media_type: str = BINARY
) -> Response:
    """Returns an answer that sends the open file and then closes it. Raises RangeNotSatisfiable.

    The ETag is the sha256, or without one a hash of the file's size and time. A request for several ranges gets the
    whole file.
    """
    info = about(file)
    etag = f'"{sha256 or info.tag}"'
    modified_at = formatdate(info.modified, usegmt=True)
    headers = {
        "Accept-Ranges": "bytes", "Content-Disposition": attachment(name), "ETag": etag, "Last-Modified": modified_at,
    }  # fmt: skip
    if sha256:
        headers["Repr-Digest"] = f"sha-256=:{b64encode(bytes.fromhex(sha256)).decode()}:"
    tags = [tag.strip().removeprefix("W/") for tag in request.headers.get("if-none-match", "").split(",")]
    if etag in tags or "*" in tags:
        file.close()
        return Response(None, 304, headers)
    byte_range = None
    if request.method == "GET" and request.headers.get("if-range", etag) in (etag, modified_at):
        try:
            byte_range = requested_range(request.headers.get("range"), info.bytes)
        except RangeNotSatisfiable:
            file.close()
            raise
    first, end = byte_range or (0, info.bytes)
    headers["Content-Length"] = str(end - first)
    if byte_range is not None:
        headers["Content-Range"] = f"bytes {first}-{end - 1}/{info.bytes}"
    if request.method == "HEAD":
        file.close()
        return Response(None, 200, headers, media_type)
    file.seek(first)
    return StreamingResponse(_sent(file, end - first, name), 206 if byte_range else 200, headers, media_type)


def requested_range(header: str | None, size: int) -> tuple[int, int] | None:
    """Returns the first byte of the requested range, and the byte after its last.

    Returns None if the header requests the whole file, several ranges, or a unit other than bytes.
    """
    unit, _, text = (header or "").partition("=")
    if unit.strip().lower() != "bytes" or "," in text:
        return None
    match = _RANGE.fullmatch(text)
    first, last = match.groups() if match else ("", "")
    start = int(first) if first else max(size - int(last or 0), 0)
    end = min(int(last) + 1, size) if first and last else size
    if start >= end:
        raise RangeNotSatisfiable(f"the file has {size:,} bytes, so it does not have the range {header!r}", size=size)
    return start, end


def attachment(name: str) -> str:
    plain = quote(name, safe="!#$&+^`|~ ")
    return f'attachment; filename="{name}"' if plain == name else f"attachment; filename*=utf-8''{quote(name, safe='')}"


async def _sent(file: IO[bytes], count: int, name: str) -> AsyncIterator[bytes]:
    with file:
        async for piece in in_threads(exactly(file, count, name)):
            yield piece


async def in_threads(pieces: Iterator[bytes]) -> AsyncIterator[bytes]:
    """Yields the pieces, each read in a thread, so that the disk never blocks the event loop."""
    while piece := await asyncio.to_thread(next, pieces, b""):
        yield piece


def tar_of(
    folder: str, files: Sequence[CheckpointFile], seconds: int, open_file: Callable[[CheckpointFile], IO[bytes]]
) -> tuple[int, Iterator[bytes]]:
    """Returns the length of a tar that contains the files in a folder, and its pieces, which are made when read.

    Each download has the same bytes, because the headers contain no user or group, and one time for all files:
    `seconds` since 1970.
    """

    def header(sealed: CheckpointFile) -> bytes:
        info = tarfile.TarInfo(f"{folder}/{sealed.path}")
        info.size, info.mtime, info.mode = sealed.bytes, seconds, 0o644
        return info.tobuf(tarfile.PAX_FORMAT)

    def pieces() -> Iterator[bytes]:
        for sealed in files:
            with open_file(sealed) as file:
                yield header(sealed)
                yield from exactly(file, sealed.bytes, sealed.path)
            if padding := bytes(-sealed.bytes % tarfile.BLOCKSIZE):
                yield padding
        yield _END_OF_TAR

    length = sum(len(header(file)) + file.bytes + -file.bytes % tarfile.BLOCKSIZE for file in files)
    return length + len(_END_OF_TAR), pieces()
