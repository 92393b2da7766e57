"""What a job left behind: the files below its outputs folder, and nothing outside it."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from contract.errors import NotFound
from service.api import shapes
from service.api.downloads import ANSWERS, download
from service.api.views import moment
from service.deps import JobPath, StrictRoute, job_id, json_response, services_of
from service.opening import open_below
from service.store import jobs

router = APIRouter(route_class=StrictRoute, tags=["files"])


@router.get(
    "/jobs/{job}/outputs", operation_id="list_outputs", summary="Its files", **shapes.answers(shapes.OutputList)
)
async def list_outputs(request: Request, job: JobPath) -> Response:
    folder = await _folder(request, job)
    root = services_of(request).settings.artifacts_path.resolve()
    found = await asyncio.to_thread(lambda: list(_files(root / folder))) if folder else []
    return json_response({"data": found, "next_cursor": None})


@router.head("/jobs/{job}/outputs/{path:path}", include_in_schema=False)
@router.get(
    "/jobs/{job}/outputs/{path:path}", operation_id="download_output", summary="One file, or a range of it", **ANSWERS
)
async def download_output(request: Request, job: JobPath, path: str) -> Response:
    services = services_of(request)
    folder = await _folder(request, job)
    found = None
    if folder is not None:
        found = await asyncio.to_thread(open_below, services.settings.artifacts_path, f"{folder}/{path}")
    if found is None:
        raise NotFound(f"the job has no output {path!r}", hint=f"GET /jobs/{job}/outputs lists them")
    return download(request, found, path.rpartition("/")[2])


async def _folder(request: Request, job: str) -> str | None:
    """Relative to the store."""
    services = services_of(request)
    return (await services.db.read(lambda conn: jobs.get(conn, services.project, job_id(job)))).outputs


def _files(folder: Path) -> Iterator[dict[str, Any]]:
    """Regular files; links are not followed, and not listed, the folder itself being one included."""
    if folder.resolve() != folder:
        return
    for parent, folders, names in os.walk(folder):
        folders.sort()
        for name in sorted(names):
            file = Path(parent) / name
            if file.is_symlink() or not file.is_file():
                continue
            about = file.stat()
            path = file.relative_to(folder).as_posix()
            yield {"path": path, "bytes": about.st_size, "modified_at": moment(int(about.st_mtime * 1000))}
