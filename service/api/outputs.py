"""Routes for a job's outputs, which are the files below its outputs folder."""

from __future__ import annotations

import asyncio
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fastapi import APIRouter, Request
from starlette.convertors import PathConvertor, register_url_convertor
from starlette.responses import Response

from footplate.contract.bucket import RemoteStore, StoreUnreachable
from footplate.contract.errors import NotFound
from footplate.contract.resources.artifacts import Output, OutputList
from service.api.downloads import ANSWERS, LinkTicket, download
from service.api.views import moment
from service.artifact_files import CannotRead, Store, open_below
from service.deps import JobPath, StrictRoute, job_id, services_of
from service.store import jobs


class AnyText(PathConvertor):
    """A path that may contain line breaks, as names of files may. Starlette's `path` ends at the first line break."""

    regex = r"[\s\S]*"


register_url_convertor("text", AnyText())
router = APIRouter(route_class=StrictRoute, tags=["files"])


@router.get("/jobs/{job}/outputs", summary="The job's output files")
async def list_outputs(request: Request, job: JobPath) -> OutputList:
    folder = await _folder(request, job)
    store = services_of(request).settings.store
    files = await asyncio.to_thread(_listed, store, folder) if folder else []
    data = tuple(Output(**file) for file in files if _is_text(file["path"]))
    return OutputList(data=data, left_out=len(files) - len(data), next_cursor=None)


@router.head("/jobs/{job}/outputs/{path:text}", include_in_schema=False)
@router.get("/jobs/{job}/outputs/{path:text}", summary="One file, or a range of it", **ANSWERS)
async def download_output(request: Request, job: JobPath, path: str, ticket: LinkTicket = None) -> Response:
    services = services_of(request)
    folder = await _folder(request, job)
    file = None
    if folder is not None:
        file = await asyncio.to_thread(open_below, services.settings.store, f"{folder}/{path}")
    if file is None:
        raise NotFound(f"the job has no output {path!r}", hint=f"GET /jobs/{job}/outputs lists them")
    return download(request, file, path.rpartition("/")[2])


def _is_text(path: str) -> bool:
    """Returns True if a URL can name the path. Bytes that are not UTF-8 are lone surrogates, which no URL can hold."""
    return path.isascii() or not any("\ud800" <= char <= "\udfff" for char in path)


async def _folder(request: Request, job: str) -> str | None:
    """Returns the job's outputs folder, relative to the artifact store, or None if the job has no outputs."""
    services = services_of(request)
    return (await services.db.read(jobs.get, services.project, job_id(job))).outputs


def _listed(store: Store, folder: str) -> list[dict[str, Any]]:
    if not isinstance(store, RemoteStore):
        return list(_files(store.resolve() / folder))
    try:
        files = store.files(folder)
    except StoreUnreachable as error:
        raise CannotRead(str(error)) from error
    return [
        {"path": file.path, "bytes": file.bytes, "modified_at": moment(int(file.modified * 1000))} for file in files
    ]  # fmt: skip


def _files(folder: Path) -> Iterator[dict[str, Any]]:
    """Yields regular files. Symbolic links are neither followed nor listed, even if the folder itself is one."""
    if folder.resolve() != folder or not folder.is_dir():
        return
    for parent, folders, names, at in os.fwalk(folder):
        folders.sort()
        for name in sorted(names):
            try:
                about = os.stat(name, dir_fd=at, follow_symlinks=False)
            except FileNotFoundError:
                continue
            if not stat.S_ISREG(about.st_mode):
                continue
            path = (Path(parent) / name).relative_to(folder).as_posix()
            yield {"path": path, "bytes": about.st_size, "modified_at": moment(int(about.st_mtime * 1000))}
