"""The page: three files, read once."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from fastapi import APIRouter, Request
from starlette.responses import Response

import service
from contract.errors import NotFound
from service.deps import StrictRoute

router = APIRouter(route_class=StrictRoute, include_in_schema=False)

PAGES = Path(service.__file__).parent / "pages"
TYPES = {".html": "text/html", ".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}


@router.get("/")
async def index(request: Request) -> Response:
    return _file("index.html")


@router.get("/pages/{name}")
async def asset(request: Request, name: str) -> Response:
    if name not in _names():
        raise NotFound(f"there is no page {name!r}")
    return _file(name)


@cache
def _names() -> frozenset[str]:
    return frozenset(path.name for path in PAGES.iterdir() if path.suffix in TYPES)


@cache
def _content(name: str) -> bytes:
    return (PAGES / name).read_bytes()


def _file(name: str) -> Response:
    headers = {"Cache-Control": "no-cache"}
    return Response(_content(name), headers=headers, media_type=TYPES[Path(name).suffix])
