"""/openapi.json as it is, and /docs as a plain page that needs no other server."""

from __future__ import annotations

import html
from typing import Any

from fastapi import APIRouter, FastAPI, Request
from fastapi.openapi.utils import get_openapi
from starlette.responses import HTMLResponse, Response

from contract.spec import job_schema
from service.api.shapes import ProblemDocument
from service.auth import is_open
from service.deps import StrictRoute, json_response
from service.problems import MEDIA_TYPE

router = APIRouter(route_class=StrictRoute, tags=["service"])

EXAMPLE = {
    "type": "urn:footplate:problem:invalid_spec",
    "title": "The request body is not valid",
    "status": 422,
    "detail": "/training/learning_rat: no field is named 'learning_rat' here",
    "instance": "/jobs",
    "code": "invalid_spec",
    "request_id": "req_019a9d0c5f7e7c6d8a53e0a1b2c3d4e5",
    "errors": [
        {
            "pointer": "/training/learning_rat",
            "code": "unknown_field",
            "detail": "no field is named 'learning_rat' here",
            "hint": "did you mean 'learning_rate'?",
        }
    ],
}
PROJECT = {
    "name": "project",
    "in": "query",
    "schema": {"type": "string", "maxLength": 64},
    "description": "Whose things are meant, where the key is one of every project. Left out: `default`.",
}
MINIMAL_SPEC = {"model": "toy/mlp", "data": "toy/regression"}


@router.get("/openapi.json", operation_id="openapi", summary="This description")
async def openapi(request: Request) -> Response:
    return json_response(describe(request.app))


@router.get("/docs", include_in_schema=False)
async def docs(request: Request) -> Response:
    return HTMLResponse(_page(describe(request.app)))


def describe(app: FastAPI) -> dict[str, Any]:
    """Made once per app: FastAPI's description, with the spec, the problems and the key that every route shares."""
    found: dict[str, Any] | None = getattr(app.state, "openapi", None)
    if found is None:
        found = app.state.openapi = _described(app)
    return found


def _described(app: FastAPI) -> dict[str, Any]:
    document = get_openapi(title=app.title, version=app.version, routes=app.routes, description=_ABOUT)
    schemas = document["components"]["schemas"]
    for name in ("HTTPValidationError", "ValidationError"):
        schemas.pop(name, None)
    _add_schema(schemas, "JobSpec", job_schema())
    _add_schema(schemas, "Problem", ProblemDocument.model_json_schema(ref_template="#/components/schemas/{model}"))
    document["components"]["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
    document["security"] = [{"key": []}]
    problem = {
        "description": "Any failure.",
        "content": {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}, "example": EXAMPLE}},
    }
    for path, operations in document["paths"].items():
        for operation in operations.values():
            operation["responses"].pop("422", None)
            operation["responses"]["default"] = problem
            if is_open(path):
                operation["security"] = []
            else:
                operation.setdefault("parameters", []).append(PROJECT)
    return document


def _add_schema(schemas: dict[str, Any], name: str, schema: dict[str, Any]) -> None:
    """A schema with definitions of its own: they become neighbours, and references follow."""
    definitions = schema.pop("$defs", {})
    schema.pop("$schema", None)
    schema.pop("$id", None)
    for inner, value in {**definitions, name: schema}.items():
        schemas.setdefault(inner, _moved(value))


def _moved(value: Any) -> Any:
    if isinstance(value, dict):
        return {
            key: item.replace("#/$defs/", "#/components/schemas/") if key == "$ref" else _moved(item)
            for key, item in value.items()
        }
    return [_moved(item) for item in value] if isinstance(value, list) else value


_ABOUT = "A job server for training: POST a JSON spec, watch it live, pause, resume, cancel."


def _page(document: dict[str, Any]) -> str:
    rows = "".join(
        f"<tr><td><code>{method.upper()}</code></td><td><code>{html.escape(path)}</code></td>"
        f"<td>{html.escape(operation.get('summary', ''))}</td></tr>"
        for path, operations in document["paths"].items()
        for method, operation in operations.items()
    )
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8"><title>Footplate API</title>'
        '<meta name="viewport" content="width=device-width"><link rel="stylesheet" href="/pages/style.css">'
        f"<main><h1>Footplate API</h1><p>{_ABOUT} The whole description, for tools, is "
        '<a href="/openapi.json">/openapi.json</a>; the job spec is <a href="/schema/job">/schema/job</a>; '
        'the jobs are at <a href="/">/</a>.</p>'
        f'<table class="routes">{rows}</table><h2>Live</h2><p><code>WS /jobs/{{job}}/stream</code> and '
        "<code>WS /jobs/{job}/metrics</code> open as websockets at the same addresses.</p></main></html>"
    )
