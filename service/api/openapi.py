"""The routes /openapi.json and /docs, and the OpenAPI description that both show.

FastAPI makes the description of the routes, and this module completes it.

The possible failures of a route are not listed by hand. They follow from its key, path parameters, body and If-Match.
A route with further failures names them in its decorator, as `responses={409: {}}`, and they are described here.
"""

from __future__ import annotations

import asyncio
import html
import json
from collections.abc import Iterator
from functools import lru_cache

from fastapi import APIRouter, FastAPI, Request
from fastapi.openapi.utils import get_openapi
from starlette.responses import HTMLResponse, Response

from footplate.contract.errors import (
    Conflict,
    Forbidden,
    InvalidSpec,
    NotFound,
    PreconditionFailed,
    Problem,
    Unauthorized,
    Unavailable,
)
from footplate.contract.fields import Json
from footplate.contract.lifecycle import JobState
from footplate.contract.resources.operations import ProblemDocument
from footplate.contract.spec_schema import job_schema, standard
from service import problems
from service.api.examples import EXAMPLES, JOB, REQUEST_ID, example_of
from service.auth import is_open
from service.deps import StrictRoute, json_response

router = APIRouter(route_class=StrictRoute, tags=["service"])


JSON = "application/json"
ABOUT = "A job server for training: POST a JSON spec, watch it live, pause, resume, cancel."
MORE = "OpenAPI cannot describe websockets: docs/reference/stream.md does."
PROJECT = {
    "name": "project",
    "in": "query",
    "schema": {"type": "string", "pattern": "^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$"},
    "description": "The project to act in, if the key is valid for every project. Left out: `default`.",
    "example": "default",
}
PATTERNS = {
    **{kind: f"^{kind}_[0-9a-f]{{32}}$" for kind in ("job", "node", "key")},
    "webhook": "^hook_[0-9a-f]{32}$",
    "file": r"^file_[0-9a-f]{64}\.(jsonl|csv|tsv|parquet|txt)$",
    "sha256": "^[0-9a-f]{64}$",
}
"""The patterns of path parameters. A value that does not match is answered 404, like one that does not exist."""
_SCOPE: Json = {"path": f"/jobs/{JOB}", problems.REQUEST_ID: REQUEST_ID}
_WRONG = Problem(
    "/training/learning_rat",
    "unknown_field",
    "no field is named 'learning_rat' here",
    "did you mean 'learning_rate'?",
)


@router.get("/openapi.json", summary="This description")
async def openapi(request: Request) -> Response:
    return json_response(await asyncio.to_thread(describe, request.app))


@router.get("/docs", include_in_schema=False)
async def docs(request: Request) -> Response:
    document = await asyncio.to_thread(describe, request.app)
    rows = "".join(
        f"<tr><td><code>{method.upper()}</code></td><td><code>{html.escape(path)}</code></td>"
        f"<td>{html.escape(operation.get('summary', ''))}</td></tr>"
        for path, operations in document["paths"].items()
        for method, operation in operations.items()
    )
    return HTMLResponse(
        '<!doctype html><html lang="en"><meta charset="utf-8"><title>Footplate API</title>'
        '<meta name="viewport" content="width=device-width"><link rel="stylesheet" href="/dashboard/docs.css">'
        f"<main><h1>Footplate API</h1><p>{ABOUT} The whole description, for tools, is "
        '<a href="/openapi.json">/openapi.json</a>; the job spec is <a href="/schema/job">/schema/job</a>; '
        'the jobs are at <a href="/">/</a>.</p>'
        f'<table class="routes">{rows}</table><h2>Live</h2><p><code>WS /jobs/{{job}}/stream</code> and '
        "<code>WS /jobs/{job}/metrics</code> open as websockets at the same addresses; "
        "<code>WS /stream</code> follows many jobs at once.</p></main></html>"
    )


_FAILURES = (
    ("NoKey", "The request has no valid key.", Unauthorized("the request needs a key")),
    (
        "Forbidden",
        "The key lacks the scope or is of another project, or the request comes from a page of another site.",
        Forbidden("the request needs a key with the scope 'submit'; this key has: read"),
    ),
    ("NotFound", "The project has nothing of this name.", NotFound(f"there is no job {JOB!r} here")),
    (
        "Conflict",
        "The present state does not allow this. For a job, `state` and `allowed` say what it allows.",
        Conflict("a job that is succeeded cannot be cancelled", state=JobState.SUCCEEDED, allowed=["delete"]),
    ),
    (
        "VersionChanged",
        "If-Match names an ETag that is no longer the job's.",
        PreconditionFailed("the job has changed: its version is 7"),
    ),
    ("BodyTooLarge", "The body has more bytes than this route accepts.", problems.BodyTooLarge("too many bytes")),
    (
        "UnsupportedMediaType",
        "The body has a media type that this route does not accept.",
        problems.UnsupportedMediaType("the body came as 'text/plain'"),
    ),
    ("RangeNotSatisfiable", "The file has no such range.", problems.RangeNotSatisfiable("no such range")),
    ("BadHost", "The Host header is not a name of this service.", problems.BadHost("unknown host")),
    ("Invalid", "Body, query or headers are invalid. All problems are listed.", InvalidSpec([_WRONG])),
    (
        "TooManyRequests",
        "The key or address sends requests too fast, or has too many streams open.",
        problems.TooManyRequests("too many requests"),
    ),
    (
        "Unavailable",
        "The database, Redis or another part of the service does not answer. Try again.",
        Unavailable("the database is down"),
    ),
)
"""The name and the meaning of each failure, and an example of its error."""


def _failures() -> dict[int, tuple[str, str, Response]]:
    """Returns the name, the meaning and an example of each status. The service's own error answers are the examples."""
    failures = {error.status: (name, meaning, problems.of_error(_SCOPE, error)) for name, meaning, error in _FAILURES}
    return failures | {500: ("Unexpected", "A fault of the service.", problems.unexpected(_SCOPE))}


@lru_cache(1)
def describe(app: FastAPI) -> Json:
    """Returns the OpenAPI description of the app's routes, which is cached."""
    document = get_openapi(title=app.title, version=app.version, routes=app.routes, description=f"{ABOUT} {MORE}")
    components = document["components"]
    for name in ("HTTPValidationError", "ValidationError"):
        components["schemas"].pop(name, None)
    reference = "#/components/schemas/{model}"
    _add_schema(components["schemas"], "JobSpec", job_schema(reference))
    _add_schema(components["schemas"], "Problem", ProblemDocument.model_json_schema(ref_template=reference))
    components["responses"] = {name: _failure(meaning, answer) for name, meaning, answer in _failures().values()}
    components["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
    document["security"] = [{"key": []}]
    names = {str(status): name for status, (name, _, _) in _failures().items()}
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            _parameters(path, operation)
            _answers(path, method, operation, names)
            _bodies(operation, components["schemas"])
    _link(document["paths"], components["schemas"])
    return document


def _failure(meaning: str, answer: Response) -> Json:
    content = {"schema": {"$ref": "#/components/schemas/Problem"}, "example": json.loads(bytes(answer.body))}
    names = [name.title().replace("Www", "WWW") for name in answer.headers if not name.startswith("content-")]
    headers = {name: {"schema": {"type": "string"}, "required": True} for name in names}
    return {
        "description": meaning,
        **({"headers": headers} if names else {}),
        "content": {problems.MEDIA_TYPE: content},
    }


def _parameters(path: str, operation: Json) -> None:
    """Completes the parameters of an operation: adds patterns, examples and the parameter `project`.

    Removes null from their types, because a query or a header cannot contain null.
    """
    parameters = operation.setdefault("parameters", [])
    for parameter in parameters:
        name, schema = parameter["name"], parameter["schema"]
        options = [option for option in schema.pop("anyOf", ()) if option != {"type": "null"}]
        if len(options) == 1:
            schema |= options[0]
        elif options:
            schema["anyOf"] = options
        if parameter["in"] == "path" and name in PATTERNS:
            schema["pattern"] = PATTERNS[name]
        by_name = EXAMPLES.get(f"{parameter['in']}.{name}", EXAMPLES.get(name))
        if example := schema.pop("examples", [by_name])[0]:
            parameter.setdefault("example", example)
    if is_open(path):
        operation["security"] = []
    elif not any(parameter["name"] == "project" for parameter in parameters):
        parameters.append(PROJECT)
    if not parameters:
        del operation["parameters"]


def _bodies(operation: Json, schemas: Json) -> None:
    """Adds an example to each JSON answer, and writes the schemas of all bodies in standard JSON Schema."""
    for part in (operation.get("requestBody", {}), *operation["responses"].values()):
        content = part.get("content", {})
        if content.get(JSON, {}).get("schema") == {}:
            # FastAPI writes an empty JSON schema for a route that makes its own Response. Drop the schema if the route
            # names another media type.
            if len(content) > 1:
                del content[JSON]
            else:
                content[JSON] = {"schema": {"type": "object"}}
        for body in content.values():
            if "schema" in body:
                body["schema"] = standard(body["schema"])
        if (body := content.get(JSON)) and body["schema"] != {"type": "object"} and "example" not in body:
            body["example"] = example_of(body["schema"], schemas)


def _answers(path: str, method: str, operation: Json, names: dict[str, str]) -> None:
    """Adds the failures with which the operation may answer, and the ETag of a job."""
    answers = operation["responses"]
    for status in map(str, _may_fail_with(path, method, operation)):
        if not answers.get(status, {}).get("content") or status == "422":
            answers[status] = {"$ref": f"#/components/responses/{names[status]}"}
    operation["responses"] = dict(sorted(answers.items()))
    for answer in answers.values():
        if answer.get("content", {}).get(JSON, {}).get("schema") == {"$ref": "#/components/schemas/Job"}:
            answer["headers"] = {"ETag": {"schema": {"type": "string"}, "description": "The job's version."}}


def _may_fail_with(path: str, method: str, operation: Json) -> Iterator[int]:
    yield from (421, 422, 500)
    yield from (int(status) for status in operation["responses"] if status.isdigit() and int(status) >= 400)
    if not is_open(path):
        yield from (401, 403, 429, 503)
    if "{" in path:
        yield 404
    if "{job}" in path and method not in ("get", "head"):
        yield 409
    if any(parameter["name"] == "If-Match" for parameter in operation.get("parameters", ())):
        yield 412
    if "requestBody" in operation:
        yield from (413, 415)
    if "206" in operation["responses"]:
        yield 416


def _link(paths: Json, schemas: Json) -> None:
    """Links each answer 201 to the operations on the new resource. For example, POST /jobs leads to `/jobs/{job}/…`."""
    for made_at, operations in paths.items():
        answer = operations.get("post", {}).get("responses", {}).get("201", {})
        reference = answer.get("content", {}).get(JSON, {}).get("schema", {}).get("$ref", "")
        properties = schemas.get(reference.rpartition("/")[2], {}).get("properties", {})
        links: Json = {}
        for path, methods in paths.items():
            beginning, _, parameter_text = path.partition("{")
            place = parameter_text.partition("}")[0]
            source = "id" if "id" in properties else place
            if beginning == f"{made_at}/" and source in properties:
                parameters = {place: f"$response.body#/{source}"}
                links |= {
                    operation["operationId"]: {"operationId": operation["operationId"], "parameters": parameters}
                    for operation in methods.values()
                }
        if links:
            answer["links"] = links


def _add_schema(schemas: Json, name: str, schema: Json) -> None:
    """Adds a schema to the components. Its own definitions become components as well."""
    definitions = schema.pop("$defs", {})
    schema.pop("$schema", None)
    schema.pop("$id", None)
    for schema_name, value in {**definitions, name: schema}.items():
        schemas.setdefault(schema_name, value)
