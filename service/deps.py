"""What every route stands on: the services of this process, one body reader, one strict kind of route."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
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
from service.api.catalogue import Catalogues
from service.auth import Gatekeeper, is_open
from service.callers import CALLER, NOBODY, Caller, needed_by
from service.events.tail import Tail
from service.metrics import Meters
from service.problems import BodyTooLarge, InvalidQuery, UnsupportedMediaType, invalid_query
from service.redis_client import Numbers, Pipe
from service.settings import ServiceSettings
from service.store.database import Database
from service.webhooks.subscribed import Listening

MAX_BODY_BYTES = 1024 * 1024
Body = TypeVar("Body", bound=BaseModel)
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Services:
    """What one API process is made of. All of it can be lost at any time; SQL has the truth."""

    settings: ServiceSettings
    db: Database
    tail: Tail
    catalogues: Catalogues
    gatekeeper: Gatekeeper
    meters: Meters
    pipe: Pipe
    webhooks: Listening
    poke: Callable[[], None]
    """Tells control that something waits. Never blocks; may be lost, because control looks by itself."""
    control: Callable[[], Awaitable[Numbers | None]]
    """What the control process has counted; None where none works."""
    untraced: str | None = None
    """What is asked for by OpenTelemetry's variables and not done. None: nothing."""
    caller: Caller = NOBODY
    """Who asks: of a request, that is; see services_of."""

    @property
    def project(self) -> str:
        """Whose things are seen and changed: statements are asked for them by it."""
        return self.caller.project

    def changed(self, job: JobId) -> None:
        """A verb wrote: readers look again, and control does."""
        self.tail.wake([job])
        self.pipe.announce([job])
        self.poke()


def services_of(connection: HTTPConnection) -> Services:
    """As this request's caller has them."""
    found: Services = connection.app.state.services
    return replace(found, caller=connection.scope[CALLER])


JobPath = Annotated[str, PathParameter(description="A job's id.", examples=["job_019a9d0c5f7e7c6d8a53e0a1b2c3d4e5"])]


def job_id(text: str) -> JobId:
    """Refused by its shape before SQL is asked."""
    if not is_id(text, "job"):
        raise NotFound(f"no job {text!r} here")
    return JobId(text)


async def read_body(request: Request) -> bytes:
    """A JSON body of at most 1 MiB, counted as it streams."""
    content_type = encoding = ""
    for name, value in request.scope["headers"]:
        if name == b"content-type":
            content_type = value.decode("latin-1")
        elif name == b"content-length" and value.isdigit() and int(value[:20]) > MAX_BODY_BYTES:
            raise _too_large()
        elif name == b"content-encoding":
            encoding = value.decode("latin-1")
    chunks, length = [], 0
    async for chunk in request.stream():
        length += len(chunk)
        if length > MAX_BODY_BYTES:
            raise _too_large()
        chunks.append(chunk)
    if length and content_type.partition(";")[0].strip().lower() != "application/json":
        hint = "send it with 'Content-Type: application/json'"
        how = f"as {content_type!r}" if content_type else "without a Content-Type"
        raise UnsupportedMediaType(f"the body came {how}", hint=hint)
    if length and encoding.lower() not in ("", "identity"):
        raise UnsupportedMediaType(f"Content-Encoding {encoding!r} is not taken", hint="send the body as it is")
    return chunks[0] if len(chunks) == 1 else b"".join(chunks)


def _too_large() -> BodyTooLarge:
    return BodyTooLarge(f"a body may have {MAX_BODY_BYTES:,} bytes", hint="put data into files under data://")


LARGE = SMALL_BYTES + 1
_BODIES = ThreadPoolExecutor(2, thread_name_prefix="bodies")


async def beside(size: int, work: Callable[[], T]) -> T:
    """Returns what `work` makes of a body of so many bytes. A body that is not small is looked at in a thread, so that
    requests which come meanwhile are served between its steps."""

    def limited() -> T:
        with few_hints():
            return work()

    if size <= SMALL_BYTES:
        return limited()
    return await asyncio.get_running_loop().run_in_executor(_BODIES, limited)


async def read_model(request: Request, model: type[Body]) -> Body:
    """A body against its model: every problem at once. No body at all is an empty object."""
    raw = await read_body(request)
    return await beside(len(raw), lambda: model_of(raw, model))


def model_of(raw: bytes, model: type[Body]) -> Body:
    """As `read_model`, of a body that was read already."""
    value = read_json(raw) if raw else {}
    if not isinstance(value, dict):
        raise InvalidSpec([Problem("", "wrong_type", f"is {kind_of(value)}, an object is needed")])
    try:
        return model.model_validate_json(json.dumps(value))
    except ValidationError as error:
        problems = explain(error, path=lambda where: where, model_at=lambda where: None if where else model)
        raise InvalidSpec(list(problems)) from error


class StrictRoute(APIRoute):
    """Asks for the scope that the route needs. Refuses query parameters that it does not know, and those given twice:
    nothing is silently ignored."""

    def __init__(self, path: str, endpoint: Callable[..., Any], **options: Any) -> None:
        super().__init__(path, endpoint, **options)
        if isinstance(self.response_model, type):
            self.response_description = self.response_model.__name__

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handler = super().get_route_handler()
        known = [one.alias for one in get_flat_params(self.dependant) if isinstance(one.field_info, Query)]
        needed = None if is_open(self.path) else needed_by(self.endpoint, self.methods or ())
        if needed is not None and "project" not in known:
            known.append("project")

        async def strict(request: Request) -> Response:
            if needed is not None:
                request.scope[CALLER].require(needed)
            if request.scope["query_string"]:
                given = request.query_params.multi_items()
                refuse_unknown([name for name, _ in given], known)
                refuse_nul(given)
            try:
                return await handler(request)
            except RequestValidationError as error:
                raise invalid_query(error.errors(), known) from error

        return strict


def refuse_unknown(given: Sequence[str], known: Sequence[str]) -> None:
    """InvalidQuery with every parameter that is not known, or is there more than once."""
    problems = []
    for name, count in Counter(given).items():
        pointer = f"/query/{name}"
        if name not in known:
            hint = did_you_mean(name, known) or (f"known: {', '.join(known)}" if known else "this address takes none")
            problems.append(Problem(pointer, "unknown_parameter", f"no query parameter named {name!r} here", hint))
        elif count > 1:
            problems.append(Problem(pointer, "duplicate_parameter", f"{name!r} is there {count} times, once is enough"))
    if problems:
        raise InvalidQuery(problems)


NO_NUL = {"pattern": r"^[^\x00]*$"}
"""For who reads the schema of a query's text that has no pattern of its own."""


def refuse_nul(given: Sequence[tuple[str, str]]) -> None:
    """No name has one, and not every database can be asked for it."""
    problems = [
        Problem(f"/query/{name}", "invalid_parameter", "holds a NUL character")
        for name, value in given
        if "\0" in value
    ]
    if problems:
        raise InvalidQuery(problems)


def json_response(value: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """Compact, with non-ASCII as it is."""
    text = json.dumps(value, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return Response(text.encode("utf-8", "replace"), status, headers, "application/json")
