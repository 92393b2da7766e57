"""One request: repeated if that is safe, and answered by JSON or by an exception that says what would work."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from itertools import count
from random import random
from typing import Any

import httpx2

from footplate.errors import Unreachable, of_answer
from footplate.sdk.waiting import Wire

FIRST_PAUSE_SECONDS = 0.25
LONGEST_PAUSE_SECONDS = 20.0
CONNECT_SECONDS = 10.0
COME_BACK = frozenset({429, 502, 503, 504})
SAFE_METHODS = frozenset({"GET", "HEAD", "DELETE"})


@dataclass(frozen=True)
class Ask:
    """A request. The body is serialised once, so that every try sends the same bytes."""

    method: str
    path: str
    params: Mapping[str, Any] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes | None = None
    is_repeatable: bool = False
    """True if sending it twice has the effect of sending it once. GET and DELETE always are."""
    read_seconds: float | None = None
    """The time to wait for the answer, if it may take longer than the client's timeout."""

    @classmethod
    def with_json(cls, method: str, path: str, value: Any, **more: Any) -> Ask:
        headers = {"Content-Type": "application/json", **more.pop("headers", {})}
        return cls(method, path, headers=headers, body=json.dumps(value).encode(), **more)

    @property
    def may_repeat(self) -> bool:
        return self.is_repeatable or self.method in SAFE_METHODS

    def on(self, wire: Wire, **more: Any) -> httpx2.Request:
        params = {name: value for name, value in self.params.items() if value is not None}
        headers = in_trace(dict(self.headers))
        if self.read_seconds is not None:
            more["timeout"] = httpx2.Timeout(CONNECT_SECONDS, read=self.read_seconds)
        return wire.request(self.method, self.path, params=params or None, headers=headers, content=self.body, **more)


def in_trace(headers: dict[str, str]) -> dict[str, str]:
    """Adds the `traceparent` of the current span. Without a span, OpenTelemetry is not even imported."""
    if "opentelemetry.trace" in sys.modules:
        import_module("opentelemetry.propagate").inject(headers)
    return headers


async def ask(wire: Wire, what: Ask, *, patience: float = 0.0) -> httpx2.Response:
    """Sends a request and returns a 2xx answer. Raises ApiError, or Unreachable after the last try.

    With `patience`, tries go on for at least that number of seconds, for callers that have waited for hours already.
    """
    until = time.monotonic() + patience
    for tried in count(1):
        is_last = tried >= wire.tries and time.monotonic() >= until
        try:
            answer = await wire.send(what.on(wire))
        except httpx2.TransportError as error:
            # A refused connection has transferred nothing, so nothing can have happened.
            may_repeat = what.may_repeat or isinstance(error, httpx2.ConnectError | httpx2.ConnectTimeout)
            if is_last or not may_repeat or isinstance(error, httpx2.UnsupportedProtocol):
                raise unreachable(what.on(wire).url, error) from error
            await wire.sleep(pause(tried))
            continue
        if answer.is_success:
            return answer
        if answer.status_code == 404 and what.method == "DELETE" and tried > 1:
            return answer  # An earlier try had deleted it, but its answer was lost.
        if is_last or not what.may_repeat or answer.status_code not in COME_BACK:
            raise refusal(answer)
        await wire.sleep(pause(tried, answer.headers.get("Retry-After")))
    raise AssertionError("the last try returns or raises")


async def ask_json(wire: Wire, what: Ask, *, patience: float = 0.0) -> Any:
    answer = await ask(wire, what, patience=patience)
    try:
        return answer.json()
    except ValueError:
        raise _no_footplate(answer) from None


async def paged(wire: Wire, path: str, *, by: str = "cursor", **params: Any) -> AsyncGenerator[dict[str, Any], None]:
    """Yields the rows of a list, and requests each page when the one before is used up.

    `by` is the query parameter that takes `next_cursor`.
    """
    while True:
        page = await ask_json(wire, Ask("GET", path, params=params))
        for row in page["data"]:
            yield row
        if (cursor := page["next_cursor"]) is None:
            return
        params = {**params, by: cursor}


def pause(tried: int, retry_after: str | None = None) -> float:
    """Returns the seconds before the next try. They double, or follow the service's header, with some randomness."""
    asked = float(retry_after) if retry_after and retry_after.strip().isdigit() else 0.0
    seconds = max(asked, FIRST_PAUSE_SECONDS * 2.0 ** min(tried - 1, 10))
    return min(seconds, LONGEST_PAUSE_SECONDS) * (1.0 + random() / 4)


def refusal(answer: httpx2.Response) -> Exception:
    """Returns the exception for an answer that is not 2xx."""
    try:
        document = answer.json()
    except ValueError:
        document = None
    if not isinstance(document, dict) or "code" not in document:
        if answer.status_code in COME_BACK:  # A proxy whose service is unreachable.
            return of_answer(answer.status_code, {"detail": f"{_origin(answer.url)} answers {answer.status_code}"})
        return _no_footplate(answer)
    return of_answer(answer.status_code, document)


def unreachable(url: httpx2.URL, error: Exception) -> Unreachable:
    said = str(error) or type(error).__name__
    return Unreachable(
        f"no Footplate service answers at {_origin(url)}: {said}",
        hint="start one here with `make up` or `footplate up`, or say where it is in FOOTPLATE_URL",
    )


def _no_footplate(answer: httpx2.Response) -> Unreachable:
    what = f"{answer.status_code}, {answer.headers.get('content-type') or 'no type'}"
    return Unreachable(
        f"something answers at {_origin(answer.url)} that is not a Footplate service ({what})",
        hint="look at FOOTPLATE_URL; it is the address that `footplate up` prints",
    )


def _origin(url: httpx2.URL) -> str:
    return f"{url.scheme}://{url.netloc.decode()}"
