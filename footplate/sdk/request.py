"""Sends a request to the service, repeats it if that is safe, and turns an error answer into an exception."""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from itertools import count
from random import random
from typing import Any, TypeVar
from urllib.parse import quote

import httpx2
from pydantic import BaseModel, ValidationError

from footplate.errors import Unreachable, invalid, of_answer
from footplate.sdk.wire import Wire

Resource = TypeVar("Resource", bound=BaseModel)
ROWS_PER_PAGE = 200
FIRST_PAUSE_SECONDS = 0.25
LONGEST_PAUSE_SECONDS = 20.0
CONNECT_SECONDS = 10.0
RETRIED_STATUSES = frozenset({429, 502, 503, 504})
SAFE_METHODS = frozenset({"GET", "HEAD", "DELETE"})


@dataclass(frozen=True)
class ApiRequest:
    """A request to the API. The body is serialised once, so that every try sends the same bytes."""

    method: str
    path: str
    params: Mapping[str, Any] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes | None = None
    stream: httpx2.SyncByteStream | None = None
    """The body of an upload, instead of `body`."""
    is_repeatable: bool = False
    """True if sending the request twice has the same effect as once. GET and DELETE are always repeatable."""
    read_seconds: float | None = None
    """The number of seconds to wait for the answer, or None for the client's timeout."""

    @classmethod
    def with_json(cls, method: str, path: str, value: Any, **options: Any) -> ApiRequest:
        headers = {"Content-Type": "application/json", **options.pop("headers", {})}
        return cls(method, path, headers=headers, body=json.dumps(value).encode(), **options)

    @property
    def may_repeat(self) -> bool:
        return self.is_repeatable or self.method in SAFE_METHODS

    def http_request(self, wire: Wire) -> httpx2.Request:
        params = {name: value for name, value in self.params.items() if value is not None}
        headers, options = dict(self.headers), dict[str, Any]()
        if "opentelemetry.trace" in sys.modules:
            # Adds the `traceparent` of the current span.
            import_module("opentelemetry.propagate").inject(headers)
        if self.read_seconds is not None:
            options["timeout"] = httpx2.Timeout(CONNECT_SECONDS, read=self.read_seconds)
        try:
            request = wire.request(
                self.method, self.path, params=params or None, headers=headers, content=self.body, **options
            )
        except httpx2.InvalidURL as error:
            longest_name = max(params, key=lambda name: len(str(params[name])), default="the path")
            detail = f"{longest_name} cannot be sent in an address: {error}"
            raise invalid("invalid_query", detail, "shorten it") from error
        if self.stream is not None:
            request.stream = self.stream
        return request


async def send(wire: Wire, request: ApiRequest, *, patience: float = 0.0) -> httpx2.Response:
    """Sends a request and returns a 2xx answer. Raises ApiError, or Unreachable after the last try.

    With `patience`, the request is retried for at least that number of seconds.
    """
    retry_deadline = time.monotonic() + patience
    for try_number in count(1):
        is_last = try_number >= wire.tries and time.monotonic() >= retry_deadline
        try:
            answer = await wire.send(request.http_request(wire))
        except httpx2.TransportError as error:
            # A refused connection has transferred nothing, so nothing can have happened.
            may_repeat = request.may_repeat or isinstance(error, httpx2.ConnectError | httpx2.ConnectTimeout)
            if is_last or not may_repeat or isinstance(error, httpx2.UnsupportedProtocol):
                raise unreachable(request.http_request(wire).url, error) from error
            await wire.sleep(pause_seconds(try_number))
            continue
        if answer.is_success:
            return answer
        if answer.status_code == 404 and request.method == "DELETE" and try_number > 1:
            return answer  # An earlier try has deleted the resource, but its answer was lost.
        if is_last or not request.may_repeat or answer.status_code not in RETRIED_STATUSES:
            raise refusal(answer)
        await wire.sleep(pause_seconds(try_number, answer.headers.get("Retry-After")))
    raise AssertionError("the last try returns or raises")


async def send_json(wire: Wire, request: ApiRequest) -> dict[str, Any]:
    """Sends a request, and returns the JSON object of the answer. All answers of a Footplate service are objects."""
    return json_object(await send(wire, request))


async def send_for(kind: type[Resource], wire: Wire, request: ApiRequest, *, patience: float = 0.0) -> Resource:
    """Sends a request, and returns the resource of the answer."""
    return read(kind, json_object(await send(wire, request, patience=patience)))


async def send_for_page(wire: Wire, request: ApiRequest) -> dict[str, Any]:
    """Sends a request, and returns a page of a list: an object with at least `data` and `next_cursor`."""
    answer = await send(wire, request)
    page = json_object(answer)
    if not isinstance(page.get("data"), list) or "next_cursor" not in page:
        raise _no_footplate(answer)
    return page


async def paged(wire: Wire, path: str, *, cursor_name: str = "cursor", **params: Any) -> AsyncGenerator[Any, None]:
    """Yields the rows of a list, and requests each page when the one before is used up.

    `cursor_name` is the query parameter that takes `next_cursor`.
    """
    while True:
        page = await send_for_page(wire, ApiRequest("GET", path, params=params))
        for row in page["data"]:
            yield row
        if (cursor := page["next_cursor"]) is None:
            return
        params = {**params, cursor_name: cursor}


async def listed(
    kind: type[Resource], wire: Wire, path: str, most: int | None = None, **params: Any
) -> AsyncGenerator[Resource, None]:
    """Yields the resources of a long list, or the first `most` of them. Pages are requested as they are needed."""
    remaining_count = math.inf if most is None else most
    if remaining_count <= 0:
        return
    async for row in paged(wire, path, limit=int(min(remaining_count, ROWS_PER_PAGE)), **params):
        yield read(kind, row)
        if (remaining_count := remaining_count - 1) == 0:
            return


async def all_resources(kind: type[Resource], wire: Wire, path: str, **params: Any) -> list[Resource]:
    return [read(kind, row) async for row in paged(wire, path, **params)]


def read(kind: type[Resource], fields: Any) -> Resource:
    """Returns the resource with these fields. Raises Unreachable if they are not those of a service of this version."""
    try:
        return kind.model_validate(fields)
    except ValidationError as error:
        raise Unreachable(
            f"this version of footplate cannot read the {kind.__name__.removeprefix('Async')} that the service sent",
            hint="install the version of footplate that the service has, or look at FOOTPLATE_URL",
        ) from error


def json_object(answer: httpx2.Response) -> dict[str, Any]:
    """Returns the JSON object of an answer. Raises Unreachable if another program has sent the answer."""
    document = document_of(answer)
    if not isinstance(document, dict):
        raise _no_footplate(answer)
    return document


def path_segment(name: str, kind: str) -> str:
    """Returns a name as a part of a path. Raises InvalidRequest for names such as `..`, which change the address."""
    if name in ("", ".", ".."):
        raise invalid(
            "invalid_id", f"{name!r} is not the name or id of a {kind}", f"list the {kind}s, and name one of them"
        )
    return quote(name, safe="")


def pause_seconds(try_number: int, retry_after: str | None = None) -> float:
    """Returns the seconds to wait after this try: doubled each time, or as Retry-After says, plus jitter."""
    requested_seconds = float(retry_after) if retry_after and retry_after.strip().isdigit() else 0.0
    seconds = max(requested_seconds, FIRST_PAUSE_SECONDS * 2.0 ** min(try_number - 1, 10))
    return min(seconds, LONGEST_PAUSE_SECONDS) * (1.0 + random() / 4)


def document_of(answer: httpx2.Response) -> Any:
    """Returns the JSON of an answer, or None if the answer is not JSON."""
    try:
        return answer.json()
    except ValueError:
        return None


def refusal(answer: httpx2.Response) -> Exception:
    """Returns the exception for an answer that is not 2xx."""
    document = document_of(answer)
    if not isinstance(document, dict) or "code" not in document:
        if answer.status_code in RETRIED_STATUSES:  # the answer of a proxy that cannot reach the service
            return of_answer(answer.status_code, {"detail": f"{_origin(answer.url)} answers {answer.status_code}"})
        return _no_footplate(answer)
    return of_answer(answer.status_code, document)


def unreachable(url: httpx2.URL, error: Exception) -> Unreachable:
    reason = str(error) or type(error).__name__
    return Unreachable(
        f"no Footplate service answers at {_origin(url)}: {reason}",
        hint="start one here with `make up` or `footplate up`, or set FOOTPLATE_URL to its address",
    )


def _no_footplate(answer: httpx2.Response) -> Unreachable:
    if (target := _other_origin(answer)) is not None:
        return Unreachable(
            f"{_origin(answer.url)} redirects to {target}", hint="set FOOTPLATE_URL to the address that it names"
        )
    description = f"{answer.status_code}, {answer.headers.get('content-type') or 'no type'}"
    return Unreachable(
        f"something answers at {_origin(answer.url)} that is not a Footplate service ({description})",
        hint="look at FOOTPLATE_URL; it is the address that `footplate up` prints",
    )


def _other_origin(answer: httpx2.Response) -> str | None:
    """Returns the other origin to which the answer redirects, or None. Proxies often redirect from http to https."""
    try:
        target = answer.url.join(answer.headers["location"]) if answer.has_redirect_location else answer.url
    except httpx2.InvalidURL:
        return None
    is_usable = target.scheme in ("http", "https") and target.host and _origin(target) != _origin(answer.url)
    return _origin(target) if is_usable else None


def _origin(url: httpx2.URL) -> str:
    return f"{url.scheme}://{url.netloc.decode()}"
