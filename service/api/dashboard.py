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
    return _file("index.html", REVALIDATE)


@router.get("/dashboard/{name}")
async def asset(request: Request, name: str) -> Response:
    if name not in _names():
        raise NotFound(f"the dashboard has no file {name!r}")
    return _file(name, FOR_EVER if HASHED.fullmatch(name) else REVALIDATE)


@cache
def _names() -> frozenset[str]:
    return frozenset(path.name for path in DASHBOARD.iterdir() if path.suffix in TYPES)


@cache
def _content(name: str) -> bytes:
    return (DASHBOARD / name).read_bytes()


def _file(name: str, cache_control: str) -> Response:
    headers = {"Cache-Control": cache_control}
    return Response(_content(name), headers=headers, media_type=TYPES[Path(name).suffix])
