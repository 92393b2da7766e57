"""Routes for bundles, which are zips of users' code, identified by their sha256."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from fastapi import Path as PathParameter
from starlette.responses import Response

from footplate.contract import layout
from footplate.contract.bundles import MAX_BYTES, look_into, too_large
from footplate.contract.errors import Forbidden, NotFound, Problem
from footplate.contract.resources.artifacts import Bundle, BundleFile, BundleList
from footplate.contract.spec import JobSpec
from service.api.documented import already_stored_response
from service.api.downloads import download
from service.api.pages import after, following
from service.api.uploads import discard, keep, uploaded
from service.api.views import shown
from service.artifact_files import open_below
from service.callers import Needed, Scope, needs
from service.deps import Services, StrictRoute, body_of, media_type_of, services_of, wrong_media_type
from service.jobs import references
from service.jobs.installed import problems_missing_everywhere
from service.jobs.references import CODE_IS_OFF, HOW_TO_TURN_CODE_ON, not_allowed
from service.problems import BodyTooLarge
from service.store.content import BUNDLES
from service.store.row_types import BundleRow
from service.store.times import now_ms

router = APIRouter(route_class=StrictRoute, tags=["bundles"])

ZIP = "application/zip"
BODY: dict[str, Any] = {
    "requestBody": {"required": True, "content": {ZIP: {"schema": {"type": "string", "format": "binary"}}}}
}
Sha256 = Annotated[str, PathParameter(description="A bundle's sha256, 64 hex digits.", examples=["0" * 64])]


class CodeIsOff(Forbidden):
    code = "code_is_off"


def require_code(services: Services) -> None:
    """Raises Forbidden if the service or the key does not allow users' own code."""
    if services.settings.code == "off":
        raise CodeIsOff(CODE_IS_OFF, hint=HOW_TO_TURN_CODE_ON)
    services.caller.require(Needed(Scope.CODE))


async def missing_code(services: Services, spec: JobSpec) -> list[Problem]:
    """Returns problems of the spec's code: what the operator forbids, what the bundle lacks, and what no node has.

    Variables in `env` are checked, too. Raises Forbidden if the caller's key does not allow users' own code.
    """
    problems = not_allowed(services.settings, spec)
    if spec.code is not None:
        if not problems:
            require_code(services)
        problems += await services.db.read(references.missing_code, project=spec.project, spec=spec)
    return problems + problems_missing_everywhere(spec, services.catalogues.announced)


@router.post(
    "/bundles",
    status_code=201,
    summary="Keep a zip of your own code",
    response_model=Bundle,
    responses=already_stored_response(Bundle),
    openapi_extra=BODY,
)
@needs(Scope.CODE)
async def create_bundle(request: Request, response: Response) -> Bundle:
    """Stores a bundle by its sha256. The same zip again is the same bundle, and the answer is 200."""
    services = services_of(request)
    require_code(services)
    if media_type_of(request) != ZIP:
        hint = f"curl --data-binary @code.zip -H 'Content-Type: {ZIP}'"
        raise wrong_media_type(request, f"a bundle must be sent as {ZIP}", hint)
    problem = too_large()
    bundle, is_new = await store_bundle(
        services, body_of(request, MAX_BYTES, BodyTooLarge(problem.detail, hint=problem.hint))
    )
    response.status_code = 201 if is_new else 200
    response.headers["Location"] = f"/bundles/{bundle.sha256}"
    return _bundle(bundle)


async def store_bundle(services: Services, pieces: AsyncIterator[bytes]) -> tuple[BundleRow, bool]:
    """Stores a zip by its sha256, and returns True if it is new in this project. Raises InvalidBundle."""
    artifacts = services.settings.artifacts_path
    async with uploaded(pieces, artifacts / layout.bundle_file("").parent) as upload:
        entries = await asyncio.to_thread(look_into, upload.file, upload.bytes)
        files = json.dumps([[entry.path, entry.bytes] for entry in entries])
        unpacked_bytes = sum(entry.bytes for entry in entries)
        row = BundleRow(services.project, upload.sha256, upload.bytes, unpacked_bytes, files, now_ms())
        path = str(layout.bundle_file(upload.sha256))
        bundle, is_new = await keep(services, path, upload, partial(BUNDLES.keep, row=row))
    if is_new:
        services.audit(f"bundle {bundle.sha256} of project {services.project} stored")
    return bundle, is_new


@router.get("/bundles", summary="Bundles, newest first")
async def list_bundles(
    request: Request,
    cursor: Annotated[str | None, Query(description="next_cursor of the page before.", max_length=100)] = None,
    limit: Annotated[int, Query(description="The most bundles of a page.", ge=1, le=200)] = 50,
) -> BundleList:
    services = services_of(request)
    rows = await services.db.read(BUNDLES.page, services.project, limit + 1, after(cursor, _is_sha256))
    next_cursor = following([(row.created_at, row.sha256) for row in rows], limit)
    return BundleList(data=tuple(map(_bundle, rows[:limit])), next_cursor=next_cursor)


@router.get("/bundles/{sha256}", summary="One bundle")
async def get_bundle(request: Request, sha256: Sha256) -> Bundle:
    return _bundle(await _row(services_of(request), sha256))


@router.get(
    "/bundles/{sha256}/archive",
    summary="The bundle's zip, byte for byte",
    responses={200: {"content": {ZIP: {}}}, 206: {"description": "The range.", "content": {ZIP: {}}}},
)
async def download_bundle(request: Request, sha256: Sha256) -> Response:
    services = services_of(request)
    row = await _row(services, sha256)
    place = str(layout.bundle_file(row.sha256))
    file = await asyncio.to_thread(open_below, services.settings.store, place)
    if file is None:
        raise NotFound(f"the file of bundle {sha256} is gone from the artifact store", hint="POST the same zip again")
    return download(request, file, f"{row.sha256[:12]}.zip", sha256=row.sha256, media_type=ZIP)


@router.delete("/bundles/{sha256}", status_code=204, summary="Delete a bundle")
@needs(Scope.CODE)
async def delete_bundle(request: Request, sha256: Sha256) -> Response:
    """Deletes the bundle. The answer is 409 while an unfinished job needs the bundle."""
    services = services_of(request)
    require_code(services)
    row = await _row(services, sha256)
    await discard(services, BUNDLES, row.sha256, str(layout.bundle_file(row.sha256)))
    services.audit(f"bundle {row.sha256} of project {services.project} deleted")
    return Response(status_code=204)


async def _row(services: Services, sha256: str) -> BundleRow:
    if not _is_sha256(sha256):
        raise NotFound(f"there is no bundle {sha256!r}", hint="GET /bundles lists them by sha256")
    return await services.db.read(BUNDLES.get, project=services.project, key=sha256)


def _is_sha256(text: str) -> bool:
    return len(text) == 64 and not set(text) - set("0123456789abcdef")


def _bundle(row: BundleRow) -> Bundle:
    files = tuple(BundleFile(path=path, bytes=size) for path, size in json.loads(row.files))
    return shown(row, Bundle, files=files)
