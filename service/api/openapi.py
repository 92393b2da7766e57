"""/openapi.json as it is, and /docs as a plain page that needs no other server."""

from __future__ import annotations

import asyncio
import html
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import HTMLResponse, Response

from service.api.description import ABOUT, describe
from service.deps import StrictRoute, json_response

router = APIRouter(route_class=StrictRoute, tags=["service"])


@router.get("/openapi.json", operation_id="openapi", summary="This description")
async def openapi(request: Request) -> Response:
    return json_response(await asyncio.to_thread(describe, request.app))


@router.get("/docs", include_in_schema=False)
async def docs(request: Request) -> Response:
    return HTMLResponse(_page(await asyncio.to_thread(describe, request.app)))


def _page(document: dict[str, Any]) -> str:
    rows = "".join(
        f"<tr><td><code>{method.upper()}</code></td><td><code>{html.escape(path)}</code></td>"
        f"<td>{html.escape(operation.get('summary', ''))}</td></tr>"
        for path, operations in document["paths"].items()
        for method, operation in operations.items()
    )
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8"><title>Footplate API</title>'
        '<meta name="viewport" content="width=device-width"><link rel="stylesheet" href="/dashboard/docs.css">'
        f"<main><h1>Footplate API</h1><p>{ABOUT} The whole description, for tools, is "
        '<a href="/openapi.json">/openapi.json</a>; the job spec is <a href="/schema/job">/schema/job</a>; '
        'the jobs are at <a href="/">/</a>.</p>'
        f'<table class="routes">{rows}</table><h2>Live</h2><p><code>WS /jobs/{{job}}/stream</code> and '
        "<code>WS /jobs/{job}/metrics</code> open as websockets at the same addresses; "
        "<code>WS /stream</code> follows many jobs at once.</p></main></html>"
    )
