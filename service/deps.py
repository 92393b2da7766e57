"""The code that every route shares.

- `Services` are the shared objects of the API process, such as the database and the settings.
- `read_body` and `read_model` read and check the body of a request.
- `StrictRoute` checks scopes and refuses unknown query parameters.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Any, TypeVar

from fastapi import Path as PathParameter
from fastapi import Request
from fastapi.dependencies.utils import get_flat_params
from fastapi.exceptions import RequestValidationError
from fastapi.params import Query
from fastapi.routing import APIRoute
from pydantic import BaseModel, ValidationError
from starlette.requests import HTTPConnection
from starlette.responses import Response

from footplate.contract.body import SMALL_BYTES, read_json
from footplate.contract.errors import InvalidSpec, NotFound, Problem, did_you_mean, few_hints
from footplate.contract.explain import explain, kind_of
from footplate.contract.ids import JobId, is_id
from service.auth import Gatekeeper, is_open
from service.caches import Catalogues, WebhookProjects
from service.callers import CALLER, NOBODY, Caller, Scope, needed_by, needs
from service.events.tail import Tail
from service.problems import BodyTooLarge, InvalidQuery, UnsupportedMediaType, invalid_query
from service.prometheus_metrics import Meters
from service.redis_client import ControlNumbers, RedisNotifier
from service.settings import ServiceSettings
from service.store.database import Database

_audit = logging.getLogger("footplate.audit")
MAX_BODY_BYTES = 1024 * 1024
Body = TypeVar("Body", bound=BaseModel)
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Services:
    """The shared objects of one API process, with the caller of a request. SQL has all state that must survive."""

    settings: ServiceSettings
    db: Database
    tail: Tail
    catalogues: Catalogues
    gatekeeper: Gatekeeper
    meters: Meters
    notifier: RedisNotifier
    webhooks: WebhookProjects
    wake_control: Callable[[], None]
    """Makes control look for work in SQL at once, without blocking. Control also looks by itself at an interval."""
    control: ControlNumbers
    untraced: str | None = None
    """The error in OpenTelemetry's variables, if traces are off because of an error."""
    caller: Caller = NOBODY
    """The caller of the request. `services_of` sets it."""

    @property
    def project(self) -> str:
        """The project of the request. Statements read and change only this project's rows."""
        return self.caller.project

    def changed(self, job: JobId) -> None:
        """Wakes the streams that follow the job, and control, after a change of the job was committed."""
        self.tail.wake([job])
        self.notifier.announce([job])
        self.wake_control()

    def audit(self, change: str) -> None:
        """Logs a change with the key of the caller, after the change was committed."""
        _audit.info("%s by %s", change, self.caller.by)


def services_of(connection: HTTPConnection) -> Services:
    """Returns the services with this request's caller."""
    services: Services = connection.app.state.services
    return replace(services, caller=connection.scope[CALLER])


JobPath = Annotated[str, PathParameter(description="A job's id.", examples=["job_019a9d0c5f7e7c6d8a53e0a1b2c3d4e5"])]


def job_id(text: str) -> JobId:
    """Returns the text as a job's id. Raises NotFound, without reading SQL, if it does not have the form of an id."""
    if not is_id(text, "job"):
        raise NotFound(f"there is no job {text!r} in this project", hint="GET /jobs lists them")
    return JobId(text)


async def body_of(request: Request, most_bytes: int, too_large: BodyTooLarge) -> AsyncIterator[bytes]:
    """Yields the pieces of a body. Raises `too_large` if there are more bytes, or if the Content-Length says so."""
    encoding, length = request.headers.get("content-encoding", ""), request.headers.get("content-length", "")
    if encoding.lower() not in ("", "identity"):
        raise UnsupportedMediaType(f"Content-Encoding {encoding!r} is not supported", hint="send the body as it is")
    if length.isascii() and length.isdigit() and int(length[:20]) > most_bytes:
        raise too_large
    arrived_bytes = 0
    async for piece in request.stream():
        arrived_bytes += len(piece)
        if arrived_bytes > most_bytes:
            raise too_large
        yield piece


def media_type_of(request: Request) -> str:
    """Returns the media type of the body in small letters and without parameters, or "" if the client sent none."""
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


def wrong_media_type(request: Request, rule: str, hint: str) -> UnsupportedMediaType:
    """Returns the error for a body with a wrong Content-Type. `rule` says which type the body must have."""
    header = request.headers.get("content-type")
    how = f"as {header!r}" if header else "without a Content-Type"
    return UnsupportedMediaType(f"the body was sent {how}, but {rule}", hint=hint)


async def read_body(request: Request) -> bytes:
    """Returns a JSON body. Raises BodyTooLarge as soon as more than 1 MiB has arrived."""
    hint = "put data into files under data://, and send shorter prompts to a model"
    too_large = BodyTooLarge(f"a body may have at most {MAX_BODY_BYTES:,} bytes", hint=hint)
    body = b"".join([piece async for piece in body_of(request, MAX_BODY_BYTES, too_large)])
    if body and media_type_of(request) != "application/json":
        raise wrong_media_type(request, "must be JSON", hint="send it with 'Content-Type: application/json'")
    return body


LARGE = SMALL_BYTES + 1
_BODIES = ThreadPoolExecutor(2, thread_name_prefix="bodies")


async def in_thread_if_large(size: int, work: Callable[[], T]) -> T:
    """Returns the result of `work`, which parses `size` bytes.

    Many bytes are parsed in a thread, so as not to block.
    """

    def limited() -> T:
        with few_hints():
            return work()

    if size <= SMALL_BYTES:
        return limited()
    return await asyncio.get_running_loop().run_in_executor(_BODIES, limited)


async def read_model(request: Request, model: type[Body]) -> Body:
    """Parses the body into the pydantic class `model`. An empty body counts as {}. Raises InvalidSpec."""
    return await model_of(await read_body(request), model)


async def model_of(raw: bytes, model: type[Body]) -> Body:
    """Parses the bytes of a body into the pydantic class `model`. Raises InvalidSpec with every problem."""
    return await in_thread_if_large(len(raw), lambda: _parsed(raw, model))


def _parsed(raw: bytes, model: type[Body]) -> Body:
    value = read_json(raw) if raw else {}
    if not isinstance(value, dict):
        raise InvalidSpec([Problem("", "wrong_type", f"the body is {kind_of(value)}, but must be an object")])
    try:
        return model.model_validate_json(json.dumps(value))
    except ValidationError as error:
        problems = explain(error, path=lambda where: where, model_at=partial(_model_at, model))
        raise InvalidSpec(list(problems)) from error


def _model_at(model: type[BaseModel], where: Sequence[str | int]) -> type[BaseModel] | None:
    """Returns the pydantic class of the nested field at a path of names, or None if its type is not such a class."""
    for name in where:
        field = model.model_fields.get(str(name))
        if field is None or not (isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel)):
            return None
        model = field.annotation
    return model


DEEP_OBJECT: dict[str, Any] = {"style": "deepObject"}
"""Marks a query parameter whose entries are parameters of their own, as `metadata[team]=vision`."""


def entries_of(request: Request, name: str) -> dict[str, str]:
    """Returns the entries of a query parameter that is marked as DEEP_OBJECT."""
    pairs = request.query_params.multi_items()
    return {key[len(name) + 1 : -1]: value for key, value in pairs if _is_entry(key, name)}


def _is_entry(key: str, name: str) -> bool:
    return key.startswith(f"{name}[") and key.endswith("]")


class StrictRoute(APIRoute):
    """A route that checks the caller's scope, and that refuses unknown and repeated query parameters.

    The name of its function is the operationId in /openapi.json.
    """

    def __init__(self, path: str, endpoint: Callable[..., Any], **options: Any) -> None:
        super().__init__(path, endpoint, **options)
        self.operation_id = self.name
        if isinstance(self.response_model, type):
            self.response_description = self.response_model.__name__

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handler = super().get_route_handler()
        parameters = get_flat_params(self.dependant)
        names = [parameter.alias for parameter in parameters if isinstance(parameter.field_info, Query)]
        objects = [parameter.alias for parameter in parameters if parameter.field_info.json_schema_extra == DEEP_OBJECT]
        needed = None if is_open(self.path) else needed_by(self.endpoint, self.methods or ())
        if needed is not None and "project" not in names:
            names.append("project")

        async def strict(request: Request) -> Response:
            if needed is not None:
                request.scope[CALLER].require(needed)
            if request.scope["query_string"]:
                items = request.query_params.multi_items()
                entries = {key for key, _ in items for name in objects if _is_entry(key, name)}
                check_query(items, [*names, *entries])
            try:
                return await handler(request)
            except RequestValidationError as error:
                raise invalid_query(error.errors()) from error

        return strict


class AdminRoute(StrictRoute):
    """A route that needs a key with the scope `admin`."""

    def __init__(self, path: str, endpoint: Callable[..., Any], **options: Any) -> None:
        super().__init__(path, needs(Scope.ADMIN)(endpoint), **options)


def check_query(items: Sequence[tuple[str, str]], allowed_names: Sequence[str]) -> None:
    """Raises InvalidQuery with every query parameter that is unknown, repeated, or contains a NUL character."""
    problems = []
    for name, count in Counter(name for name, _ in items).items():
        pointer = f"/query/{name}"
        if name not in allowed_names:
            choices = f"known: {', '.join(allowed_names)}" if allowed_names else "this address has no parameters"
            hint = did_you_mean(name, allowed_names) or choices
            problems.append(Problem(pointer, "unknown_parameter", f"no query parameter named {name!r} here", hint))
        elif count > 1:
            problems.append(Problem(pointer, "duplicate_parameter", f"{name!r} is sent {count} times", "send it once"))
        elif any("\0" in value for key, value in items if key == name):
            # PostgreSQL refuses NUL characters.
            problems.append(Problem(pointer, "invalid_parameter", "contains a NUL character"))
    if problems:
        raise InvalidQuery(problems)


NO_NUL = {"pattern": r"^[^\x00]*$"}
"""The schema of query parameters without a pattern of their own. It refuses NUL characters."""


def json_response(value: Any) -> Response:
    """Returns compact JSON. Characters outside ASCII are not escaped."""
    text = json.dumps(value, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return Response(text.encode("utf-8", "replace"), media_type="application/json")
