"""The API as OpenAPI tells it: what FastAPI knows of the routes, and what all of them share.

Nothing here is said route by route. A route that is added has its failures by what it is: whether it asks for a key,
has a place in its address, reads a body, takes If-Match. One that answers more than that names it in its decorator,
`responses={409: {}}`, and the answer is described below like any other.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from starlette.responses import Response

from footplate.contract.errors import (
    Conflict,
    Forbidden,
    InvalidSpec,
    NotFound,
    PreconditionFailed,
    Problem,
    Unauthorized,
)
from footplate.contract.errors import Unavailable as AwayNow
from footplate.contract.lifecycle import JobState
from footplate.contract.resources.operations import ProblemDocument
from footplate.contract.schema import standard
from footplate.contract.spec import job_schema
from service import problems
from service.api.examples import JOB, OF_PARAMETERS, REQUEST_ID, example_of
from service.auth import is_open

Json = dict[str, Any]

JSON = "application/json"
ABOUT = "A job server for training: POST a JSON spec, watch it live, pause, resume, cancel."
MORE = "Websockets are beyond what OpenAPI can say: docs/reference/stream.md describes them."
PROJECT = {
    "name": "project",
    "in": "query",
    "schema": {"type": "string", "pattern": "^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$"},
    "description": "Whose things are meant, where the key is one of every project. Left out: `default`.",
    "example": "default",
}
PATTERNS = {
    **{kind: f"^{kind}_[0-9a-f]{{32}}$" for kind in ("job", "node", "key")},
    "webhook": "^hook_[0-9a-f]{32}$",
    "file": r"^file_[0-9a-f]{64}\.(jsonl|csv|tsv|parquet)$",
    "sha256": "^[0-9a-f]{64}$",
}
"""What the places of addresses look like. What does not is a 404, as one that is not there."""
_SCOPE: Json = {"path": f"/jobs/{JOB}", problems.REQUEST_ID: REQUEST_ID}
_WRONG = Problem(
    "/training/learning_rat",
    "unknown_field",
    "no field is named 'learning_rat' here",
    "did you mean 'learning_rate'?",
)


def _failures() -> dict[int, tuple[str, str, Response]]:
    """Of each status its name, what it means, and an answer as the service itself would write it."""
    found = {
        401: ("NoKey", "No key, or none that is good.", Unauthorized("this needs a key")),
        403: (
            "Forbidden",
            "The key lacks the scope, or is of another project; or a page of another site asks.",
            Forbidden("this needs a key with the scope 'submit'; this key has: read"),
        ),
        404: ("NotFound", "Nothing of this name in the project.", NotFound(f"there is no job {JOB!r} in this project")),
        409: (
            "Conflict",
            "What it is about does not allow this now; `state` and `allowed` say what it does.",
            Conflict("a job that is succeeded cannot be cancelled", state=JobState.SUCCEEDED, allowed=["delete"]),
        ),
        412: (
            "VersionChanged",
            "If-Match names an ETag that is no longer the job's.",
            PreconditionFailed("it is at 7"),
        ),
        413: (
            "BodyTooLarge",
            "The body has more bytes than this route takes.",
            problems.BodyTooLarge("too many bytes"),
        ),
        415: (
            "UnsupportedMediaType",
            "The body is of another type than this route takes.",
            problems.UnsupportedMediaType("the body came as 'text/plain'"),
        ),
        416: ("RangeNotSatisfiable", "The file has no such range.", problems.RangeNotSatisfiable("no such range")),
        421: ("BadHost", "The Host header is no name of this service.", problems.BadHost("'evil.example' is no name")),
        422: ("Invalid", "Body, query or headers cannot be used: every problem at once.", InvalidSpec([_WRONG])),
        429: (
            "TooManyRequests",
            "The key asks too fast, or holds too much open.",
            problems.TooManyRequests("too fast"),
        ),
        503: ("Unavailable", "A part that this needs is away. Try again.", AwayNow("the database does not answer")),
    }
    answers = {
        status: (name, meaning, problems.of_error(_SCOPE, error)) for status, (name, meaning, error) in found.items()
    }
    return answers | {500: ("Unexpected", "A fault of ours.", problems.unexpected(_SCOPE))}


def describe(app: FastAPI) -> Json:
    """Made once per app."""
    found: Json | None = getattr(app.state, "openapi", None)
    if found is None:
        found = app.state.openapi = _described(app)
    return found


def _described(app: FastAPI) -> Json:
    document = get_openapi(title=app.title, version=app.version, routes=app.routes, description=f"{ABOUT} {MORE}")
    shared = document["components"]
    for name in ("HTTPValidationError", "ValidationError"):
        shared["schemas"].pop(name, None)
    _add_schema(shared["schemas"], "JobSpec", job_schema())
    reference = "#/components/schemas/{model}"
    _add_schema(shared["schemas"], "Problem", ProblemDocument.model_json_schema(ref_template=reference))
    shared["responses"] = {name: _failure(meaning, one) for name, meaning, one in _failures().values()}
    shared["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
    document["security"] = [{"key": []}]
    names = {str(status): name for status, (name, _, _) in _failures().items()}
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            _parameters(path, operation)
            _answers(path, method, operation, names)
            _bodies(operation, shared["schemas"])
    _link(document["paths"], shared["schemas"])
    return document


def _failure(meaning: str, answer: Response) -> Json:
    content = {"schema": {"$ref": "#/components/schemas/Problem"}, "example": json.loads(bytes(answer.body))}
    own = [name.title().replace("Www", "WWW") for name in answer.headers if not name.startswith("content-")]
    headers = {name: {"schema": {"type": "string"}, "required": True} for name in own}
    return {"description": meaning, **({"headers": headers} if own else {}), "content": {problems.MEDIA_TYPE: content}}


def _parameters(path: str, operation: Json) -> None:
    """An address or a header cannot carry null: a parameter that may be left out is one that is not required."""
    parameters = operation.setdefault("parameters", [])
    for one in parameters:
        options = [option for option in one["schema"].pop("anyOf", ()) if option != {"type": "null"}]
        if len(options) == 1:
            one["schema"] |= options[0]
        elif options:
            one["schema"]["anyOf"] = options
        if one["in"] == "path" and one["name"] in PATTERNS:
            one["schema"]["pattern"] = PATTERNS[one["name"]]
        if example := (one["schema"].pop("examples", None) or [OF_PARAMETERS.get(one["name"])])[0]:
            one.setdefault("example", example)
    if is_open(path):
        operation["security"] = []
    elif not any(one["name"] == "project" for one in parameters):
        parameters.append(PROJECT)
    if not parameters:
        del operation["parameters"]


def _bodies(operation: Json, schemas: Json) -> None:
    """An example for each body of JSON that has none of its own, of what is asked and of what is answered."""
    for part in (operation.get("requestBody", {}), *operation["responses"].values()):
        content = part.get("content", {})
        if content.get(JSON, {}).get("schema") == {}:
            # FastAPI's word for whatever a route writes itself: another type if one is named, else some object.
            content.pop(JSON) if len(content) > 1 else content.update({JSON: {"schema": {"type": "object"}}})
        for told in content.values():
            told.update({"schema": standard(told["schema"])} if "schema" in told else {})
        if (told := content.get(JSON)) and told["schema"] != {"type": "object"} and "example" not in told:
            told["example"] = example_of(told["schema"], schemas)


def _answers(path: str, method: str, operation: Json, names: dict[str, str]) -> None:
    """Every failure that the operation may answer, and none that it may not."""
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
    if any(one["name"] == "If-Match" for one in operation.get("parameters", ())):
        yield 412
    if "requestBody" in operation:
        yield from (413, 415)
    if "206" in operation["responses"]:
        yield 416


def _link(paths: Json, schemas: Json) -> None:
    """From what is made to all that can be done with it: POST /jobs answers an id, which `/jobs/{job}/…` takes."""
    for made_at, operations in paths.items():
        answer = operations.get("post", {}).get("responses", {}).get("201", {})
        reference = answer.get("content", {}).get(JSON, {}).get("schema", {}).get("$ref", "")
        properties = schemas.get(reference.rpartition("/")[2], {}).get("properties", {})
        links: Json = {}
        for path, others in paths.items():
            head, _, rest = path.partition("{")
            place = rest.partition("}")[0]
            source = "id" if "id" in properties else place
            if head == f"{made_at}/" and source in properties:
                parameters = {place: f"$response.body#/{source}"}
                links |= {one["operationId"]: _to(one, parameters) for one in others.values()}
        if links:
            answer["links"] = links


def _to(operation: Json, parameters: dict[str, str]) -> Json:
    return {"operationId": operation["operationId"], "parameters": parameters}


def _add_schema(schemas: Json, name: str, schema: Json) -> None:
    """A schema with definitions of its own: they become neighbours, and references follow."""
    definitions = schema.pop("$defs", {})
    schema.pop("$schema", None)
    schema.pop("$id", None)
    for inner, value in {**definitions, name: schema}.items():
        schemas.setdefault(inner, _moved(value))


def _moved(value: Any) -> Any:
    """Returns the schema with its pointers into `$defs` pointing into the document's components.

    Pointers stand behind `$ref` and in a discriminator's mapping."""
    if isinstance(value, str):
        prefix = "#/$defs/"
        return f"#/components/schemas/{value.removeprefix(prefix)}" if value.startswith(prefix) else value
    if isinstance(value, dict):
        return {key: _moved(item) for key, item in value.items()}
    return [_moved(item) for item in value] if isinstance(value, list) else value
