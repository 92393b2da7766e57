"""Files on their way to a user: whole or by a range, as attachments, and never through a link."""

from __future__ import annotations

import asyncio
import re
from base64 import b64encode
from collections.abc import AsyncIterator, Iterator
from email.utils import formatdate
from typing import IO, Any
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from service.artifact_files import about, exactly
from service.problems import RangeNotSatisfiable

BINARY = "application/octet-stream"
ANSWERS: dict[str, Any] = {
    "responses": {
        200: {"content": {BINARY: {}}},
        206: {"description": "The range.", "content": {BINARY: {}}},
        304: {"description": "If-None-Match names what it is."},
    }
}
"""For a route's decorator."""
_RANGE = re.compile(r"\s*([0-9]{0,18})-([0-9]{0,18})\s*")


def download(
    request: Request, file: IO[bytes], name: str, *, sha256: str | None = None, media_type: str = BINARY
) -> Response:
    """Of an open file, which it closes. Raises RangeNotSatisfiable.

    Known by its sha256, or by its size and time. One range is served; who asks for several gets the whole file.
    """
    found = about(file)
    etag = f'"{sha256 or found.tag}"'
    changed = formatdate(found.modified, usegmt=True)
    headers = {
        "Accept-Ranges": "bytes", "Content-Disposition": attachment(name), "ETag": etag, "Last-Modified": changed,
    }  # fmt: skip
    if sha256:
        headers["Repr-Digest"] = f"sha-256=:{b64encode(bytes.fromhex(sha256)).decode()}:"
    if _names(request.headers.get("if-none-match"), etag):
        file.close()
        return Response(None, 304, headers)
    part = None
    if request.method == "GET" and request.headers.get("if-range", etag) in (etag, changed):
        try:
            part = wanted(request.headers.get("range"), found.bytes)
        except RangeNotSatisfiable:
            file.close()
            raise
    first, behind = part or (0, found.bytes)
    headers["Content-Length"] = str(behind - first)
    if part is not None:
        headers["Content-Range"] = f"bytes {first}-{behind - 1}/{found.bytes}"
    if request.method == "HEAD":
        file.close()
        return Response(None, 200, headers, media_type)
    file.seek(first)
    return StreamingResponse(_sent(file, behind - first), 206 if part else 200, headers, media_type)


def wanted(header: str | None, size: int) -> tuple[int, int] | None:
    """The range that a Range header asks for: its first byte, and the one behind its last. None: all of it is wanted,
    or several parts, or parts in another unit than bytes."""
    unit, _, text = (header or "").partition("=")
    if unit.strip().lower() != "bytes" or "," in text:
        return None
    found = _RANGE.fullmatch(text)
    first, last = found.groups() if found else ("", "")
    start = int(first) if first else max(size - int(last or 0), 0)
    behind = min(int(last) + 1, size) if first and last else size
    if start >= behind:
        raise RangeNotSatisfiable("this file has no such range", size=size)
    return start, behind


def attachment(name: str) -> str:
    plain = quote(name, safe="!#$&+^`|~ ")
    return f'attachment; filename="{name}"' if plain == name else f"attachment; filename*=utf-8''{quote(name, safe='')}"


def _names(header: str | None, etag: str) -> bool:
    told = [one.strip().removeprefix("W/") for one in (header or "").split(",")]
    return etag in told or "*" in told


async def _sent(file: IO[bytes], count: int) -> AsyncIterator[bytes]:
    try:
        async for piece in in_threads(exactly(file, count)):
            yield piece
    finally:
        file.close()


async def in_threads(pieces: Iterator[bytes]) -> AsyncIterator[bytes]:
    """Each is read from the disk beside the event loop."""
    while piece := await asyncio.to_thread(_next, pieces):
        yield piece


def _next(pieces: Iterator[bytes]) -> bytes:
    return next(pieces, b"")
