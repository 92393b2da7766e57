"""What a job left behind: the files below its outputs folder, and nothing outside it."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import FileResponse, Response
from starlette.types import Message, Receive, Scope, Send

from contract.errors import NotFound
from service import problems
from service.api import shapes
from service.api.views import moment
from service.deps import JobPath, StrictRoute, job_id, json_response, services_of
from service.store import jobs

router = APIRouter(route_class=StrictRoute, tags=["files"])


@router.get(
    "/jobs/{job}/outputs", operation_id="list_outputs", summary="Its files", **shapes.answers(shapes.OutputList)
)
async def list_outputs(request: Request, job: JobPath) -> Response:
    folder = await _folder(request, job)
    found = await asyncio.to_thread(lambda: list(_files(folder))) if folder else []
    return json_response({"data": found, "next_cursor": None})


@router.get(
    "/jobs/{job}/outputs/{path:path}",
    operation_id="download_output",
    summary="One file, or a range of it",
    responses={200: {"content": {"application/octet-stream": {}}}, 206: {"description": "The range."}},
)
async def download_output(request: Request, job: JobPath, path: str) -> Response:
    folder = await _folder(request, job)
    found = await asyncio.to_thread(_below, folder, path) if folder else None
    if found is None:
        raise NotFound(f"the job has no output {path!r}", hint=f"GET /jobs/{job}/outputs lists them")
    return Download(found, media_type="application/octet-stream", filename=found.name)


async def _folder(request: Request, job: str) -> Path | None:
    services = services_of(request)
    row = await services.db.read(lambda conn: jobs.get(conn, services.project, job_id(job)))
    return services.settings.artifacts_path / row.outputs if row.outputs else None


def _files(folder: Path) -> Iterator[dict[str, Any]]:
    """Regular files; links are not followed, and not listed."""
    for parent, folders, names in os.walk(folder):
        folders.sort()
        for name in sorted(names):
            file = Path(parent) / name
            if file.is_symlink() or not file.is_file():
                continue
            about = file.stat()
            path = file.relative_to(folder).as_posix()
            yield {"path": path, "bytes": about.st_size, "modified_at": moment(int(about.st_mtime * 1000))}


def _below(folder: Path, path: str) -> Path | None:
    """The file, with every link and `..` resolved, if it still lies below the folder."""
    try:
        root, found = folder.resolve(), (folder / path).resolve()
        return found if found.is_relative_to(root) and found.is_file() else None
    except (OSError, ValueError):
        # A NUL, a name that is too long, a loop of links.
        return None


class Download(FileResponse):
    """As an attachment, by ranges; a range that cannot be served is a problem like any other."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        refused = False

        async def checked(message: Message) -> None:
            nonlocal refused
            if message["type"] == "http.response.start" and message["status"] in (400, 416):
                refused = True
            if not refused:
                await send(message)

        await super().__call__(scope, receive, checked)
        if refused:
            error = problems.RangeNotSatisfiable(
                "this file has no such range", hint=f"it has {os.stat(self.path).st_size} bytes: bytes=0-"
            )
            await problems.of_error(scope, error)(scope, receive, send)
