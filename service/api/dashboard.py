"""Serves the dashboard's files, which are built from web/ and read once."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

from fastapi import APIRouter, Request
from starlette.responses import Response

import service
from footplate.contract.errors import NotFound
from service.deps import StrictRoute

router = APIRouter(route_class=StrictRoute, include_in_schema=False)

DASHBOARD = Path(service.__file__).parent / "dashboard"
TYPES = {".html": "text/html", ".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}
REVALIDATE = "no-cache"
FOR_EVER = "public, max-age=31536000, immutable"
HASHED = re.compile(r".+-[A-Za-z0-9_-]{8}\.(js|css)")
"""Names that contain a hash of the file's content, so browsers may cache them for ever."""


@router.get("/")
async def index(request: Request) -> Response:
    return await asset(request, "index.html")


@router.get("/dashboard/{name}")
async def asset(request: Request, name: str) -> Response:
    if (content := files().get(name)) is None:
        raise NotFound(f"the dashboard has no file {name!r}")
    headers = {"Cache-Control": FOR_EVER if HASHED.fullmatch(name) else REVALIDATE}
    return Response(content, headers=headers, media_type=TYPES[Path(name).suffix])


@cache
def files() -> dict[str, bytes]:
    """Returns all files by name. They are read together, because the names in each are those of one build."""
    return {path.name: path.read_bytes() for path in DASHBOARD.iterdir() if path.suffix in TYPES}
