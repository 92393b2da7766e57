"""Answers every failure with `application/problem+json`, and below /v1 in OpenAI's form.

An unexpected failure shows no details.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Sequence
from math import ceil
from typing import Any

from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.routing import Match, Route
from starlette.types import Receive, Scope, Send

from footplate.contract import explain
from footplate.contract.body import keys_of, pointer_to
from footplate.contract.errors import (
    Conflict,
    FootplateError,
    InvalidSpec,
    NotFound,
    Problem,
    Unauthorized,
    Unavailable,
    did_you_mean,
)
from service.redaction import without_keys

log = logging.getLogger("footplate.api")

MEDIA_TYPE = "application/problem+json"
REQUEST_ID = "footplate.request_id"
"""The name in an ASGI scope under which the guard stores the request id."""
OPENAI_PREFIX = "/v1/"
"""The addresses that programs written for OpenAI's API call. Their failures have that API's form."""


class BodyTooLarge(FootplateError):
    code = "body_too_large"
    status = 413
    title = "The request body is too large"


class HeadersTooLarge(FootplateError):
    code = "headers_too_large"
    status = 431
    title = "The request's headers are too large"


class UnsupportedMediaType(FootplateError):
    code = "unsupported_media_type"
    status = 415
    title = "The request body has a type that is not accepted here"


class BadHost(FootplateError):
    """The error for a foreign name in Host. A page of another site may have a name that points at this machine."""

    code = "host_not_allowed"
    status = 421
    title = "Not a name of this service"


class TooManyRequests(FootplateError):
    code = "too_many_requests"
    status = 429
    title = "Too many requests"

    def __init__(self, message: str, *, wait_seconds: float = 1.0) -> None:
        self.retry_after_seconds = max(1, ceil(wait_seconds))
        super().__init__(message, hint=f"try again in {self.retry_after_seconds} s")


class RangeNotSatisfiable(FootplateError):
    code = "range_not_satisfiable"
    status = 416
    title = "The range lies outside the file"

    def __init__(self, message: str, *, size: int = 0) -> None:
        super().__init__(message, hint=f"the file has {size} bytes: bytes=0-")
        self.size = size


class InvalidQuery(InvalidSpec):
    """A query that is not valid. Its pointers start with /query."""

    code = "invalid_query"
    title = "The query is not valid"


def problem(
    scope: Any, *, status: int, code: str, title: str, detail: str, errors: Sequence[Problem] = (),
    headers: dict[str, str] | None = None, **more: Any,
) -> Response:  # fmt: skip
    """Returns a problem document with the further fields `more`."""
    if scope["path"].startswith(OPENAI_PREFIX):
        return _as_openai(status, code, detail, errors, more.get("hint"), headers)
    body = {
        "type": f"urn:footplate:problem:{code}",
        "title": title,
        "status": status,
        "detail": detail,
        "instance": scope["path"],
        "code": code,
        "request_id": scope.get(REQUEST_ID, ""),
        "errors": [error.as_dict() for error in errors],
        **more,
    }
    # The path may contain lone surrogates, which only ASCII escapes can represent.
    return Response(without_keys(json.dumps(body)).encode(), status, headers, MEDIA_TYPE)


_OPENAI_CODES = {401: "invalid_api_key", 429: "rate_limit_exceeded"}
_OPENAI_TYPES = {401: "authentication_error", 403: "permission_error", 409: "conflict_error", 429: "rate_limit_error"}
MOST_SENTENCES = 10


def _as_openai(
    status: int, code: str, detail: str, errors: Sequence[Problem], hint: str | None, headers: dict[str, str] | None
) -> Response:
    """Returns a failure in the form of OpenAI's API, in which a wrong request is 400 and never 422."""
    sentences = [_sentence(_parameter(error), error.detail, error.hint) for error in errors[:MOST_SENTENCES]]
    if len(errors) > MOST_SENTENCES:
        sentences.append(f"and {len(errors) - MOST_SENTENCES} more problems")
    error = {
        "message": "; ".join(sentences) or _sentence(None, detail, hint),
        "type": _OPENAI_TYPES.get(status, "server_error" if status >= 500 else "invalid_request_error"),
        "param": _parameter(errors[0]) if errors else None,
        "code": _OPENAI_CODES.get(status, errors[0].code if errors else code),
    }
    if status == 409:
        # OpenAI's SDKs would retry after a 409, although the job's state will be the same.
        headers = {**(headers or {}), "x-should-retry": "false"}
    text = without_keys(json.dumps({"error": error}))
    return Response(text.encode(), 400 if status == 422 else status, headers, "application/json")


def _parameter(error: Problem) -> str | None:
    """Returns the pointer of a problem in OpenAI's form. For example, /method/dpo becomes method.dpo."""
    return ".".join(keys_of(error.pointer.removeprefix("/query"))) or None


def _sentence(parameter: str | None, detail: str, hint: str | None) -> str:
    return f"{f'{parameter}: ' if parameter else ''}{detail}{f' ({hint})' if hint else ''}"


def of_error(scope: Any, error: FootplateError) -> Response:
    """Returns the answer for one of our own errors."""
    more: dict[str, Any] = {"hint": error.hint} if error.hint else {}
    errors: Sequence[Problem] = []
    headers: dict[str, str] | None = None
    if isinstance(error, InvalidSpec):
        errors = error.problems
    elif isinstance(error, NotFound) and error.parameter:
        errors = [Problem(f"/{error.parameter}", error.code, error.message, error.hint)]
    elif isinstance(error, Conflict):
        more |= {"state": error.state, "allowed": error.allowed}
    elif isinstance(error, Unavailable | TooManyRequests):
        headers = {"Retry-After": str(error.retry_after_seconds)}
    elif isinstance(error, RangeNotSatisfiable):
        headers = {"Content-Range": f"bytes */{error.size}"}
    elif isinstance(error, Unauthorized):
        headers = {"WWW-Authenticate": 'Bearer realm="footplate"'}
    if error.status >= 500 and not isinstance(error, Unavailable):
        return unexpected(scope)
    return problem(
        scope, status=error.status, code=error.code, title=error.title, detail=error.message, errors=errors,
        headers=headers, **more,
    )  # fmt: skip


def unexpected(scope: Any) -> Response:
    detail = "This is a fault of the service. Its log has details under this request id."
    return problem(scope, status=500, code="internal", title="Something went wrong", detail=detail)


def comma_list(text: str, parameter: str, most: int) -> list[str]:
    """Returns the entries of a query parameter that is a list with commas. Raises InvalidQuery for too many entries."""
    if text.count(",") >= most:
        raise InvalidQuery([Problem(f"/query/{parameter}", "too_many", f"has more than {most} entries")])
    return text.split(",")


def require_known(parameter: str, code: str, names: Iterable[str], known_names: Sequence[str]) -> None:
    """Raises InvalidQuery with every unknown name in a query parameter. `code` is the error code of these problems."""
    word, choices = code.removeprefix("unknown_"), [str(name) for name in known_names]
    choice_list = f"known: {', '.join(choices)}"
    problems = [
        Problem(f"/query/{parameter}", code, f"there is no {word} {name!r}; {choice_list}", did_you_mean(name, choices))
        for name in names
        if name not in choices
    ]
    if problems:
        raise InvalidQuery(problems)


def invalid_query(errors: Iterable[Any]) -> InvalidQuery:
    """Converts pydantic's errors about query or path parameters."""
    problems = []
    for error in errors:
        pointer = pointer_to(*map(str, error["loc"]))
        explanation = explain.problem(pointer, error)
        problems.append(Problem(pointer, "invalid_parameter", explanation.detail, explanation.hint))
    return InvalidQuery(problems)


async def nothing_here(scope: Scope, receive: Receive, send: Send) -> None:
    """Answers 404 for an address without a route. A websocket gets the same answer before its handshake."""
    detail = "There is nothing at this address. GET /openapi.json lists all addresses."
    answer = problem(scope, status=404, code="not_found", title="Not Found", detail=detail)
    await answer(scope, receive, send)


def of_exception(scope: Scope, error: Exception) -> Response:
    """Returns the answer for an error of a route. Logs the errors that are not the client's."""
    # %r escapes line breaks in the path, which could forge lines of the log.
    if isinstance(error, FootplateError):
        if isinstance(error, Unavailable):
            details = scope["method"], scope["path"], error.status, error.message, scope[REQUEST_ID]
            log.warning("%s %r got %d: %s, request_id=%s", *details)
        return of_error(scope, error)
    if isinstance(error, HTTPException) and error.status_code == 405:
        # Each method of an address is a route, and Starlette reports only the methods of the first one.
        routes = [route for route in scope["app"].routes if isinstance(route, Route)]
        matching = [route for route in routes if route.matches(scope)[0] is not Match.NONE]
        allow = ", ".join(sorted({method for route in matching for method in route.methods or ()}))
        detail = "This address does not support the method. The Allow header lists its methods."
        title, headers = "Method Not Allowed", {"Allow": allow}
        return problem(scope, status=405, code="method_not_allowed", title=title, detail=detail, headers=headers)
    log.error("%s %r failed, request_id=%s", scope["method"], scope["path"], scope[REQUEST_ID], exc_info=error)
    return unexpected(scope)
