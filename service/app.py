"""The API as one ASGI app: the guard, then FastAPI's routes.

The guard checks host, origin and key, and adds the request id and security headers. It counts answers and catches any
exception. The routes in service/api parse, call one operation, and answer.
"""

from __future__ import annotations

import logging
import re
from functools import partial
from time import perf_counter

from fastapi import FastAPI
from fastapi.middleware.asyncexitstack import AsyncExitStackMiddleware
from fastapi.telemetry import TelemetryConfig
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from footplate.contract.errors import FootplateError, Unauthorized
from footplate.contract.ids import uuid7
from service import problems
from service.api import (
    bulk,
    bundles,
    checkpoints,
    curves,
    dashboard,
    exports,
    external,
    files,
    forks,
    history,
    jobs,
    keys,
    listing,
    nodes,
    openapi,
    outputs,
    predict,
    queue,
    stream,
    stream_many,
    system,
    verbs,
    webhooks,
)
from service.api.openai import completions, model_list
from service.api.openai import files as openai_files
from service.api.openai import jobs as openai_jobs
from service.api.openai import uploads as openai_uploads
from service.api.openai import webhooks as openai_webhooks
from service.auth import Credentials, ForeignPage, subprotocol_of
from service.callers import CALLER, Caller
from service.deps import Services
from service.problems import BadHost
from service.server import ACCEPTED_SUBPROTOCOL, SOCKET, close_code, close_reason

log = logging.getLogger("footplate.api")

SECURITY_HEADERS = [
    (b"x-content-type-options", b"nosniff"),
    (b"content-security-policy", b"default-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'self'"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
]
NO_STORE = (b"cache-control", b"no-store")
NO_TELEMETRY: TelemetryConfig = {"tracing": False, "metrics": False, "logs": False, "auto_configure": False}
"""FastAPI's own telemetry is off, because it would send bodies and queries. service/spans.py sends our traces."""
_REQUEST_ID = re.compile(rb"[A-Za-z0-9._:-]{1,64}")


def create_app(services: Services) -> ASGIApp:
    """Returns the complete API, which a server can run."""
    app = routes()
    app.state.services = services
    app.router.default = problems.nothing_here
    return Guard(app, services)


def routes() -> FastAPI:
    """Returns an app with all routes and no services, which is enough to describe the routes."""
    app = _Routes(
        title="Footplate", version="0.1.0", docs_url=None, redoc_url=None, openapi_url=None, redirect_slashes=False,
        telemetry=NO_TELEMETRY,
    )  # fmt: skip
    # The busiest routes come first, because routes are tried in order.
    parts = (
        jobs, verbs, bulk, forks, history, curves, stream, stream_many, listing, checkpoints, outputs, predict,
        completions, exports, external, bundles, files, nodes, queue, keys, webhooks, system, openapi, dashboard,
        openai_jobs, openai_files, openai_uploads, openai_webhooks, model_list,
    )  # fmt: skip
    for part in parts:
        # The routes are added without `include_router`, because an included router doubles the cost of matching.
        app.router.routes.extend(part.router.routes)
    return app


class _Routes(FastAPI):
    def build_middleware_stack(self) -> ASGIApp:
        """Returns a stack without FastAPI's handlers of errors, because `Guard` answers every error."""
        return AsyncExitStackMiddleware(self.router)


class Guard:
    """Checks every request and websocket before the routes. It is plain ASGI, because other middleware is slower."""

    def __init__(self, app: FastAPI, services: Services) -> None:
        self.app = app
        self.services = services

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            await self._request(scope, receive, send)
        elif scope["type"] == "websocket":
            await self._socket(scope, receive, send)
        else:
            await self.app(scope, receive, send)

    async def _request(self, scope: Scope, receive: Receive, send: Send) -> None:
        started_at = perf_counter()
        credentials = Credentials.of(scope["headers"], scope.get("client"))
        request_id = _request_id(scope, credentials)
        status = 0

        async def guarded(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = message["headers"] = [*message["headers"], *SECURITY_HEADERS, (b"x-request-id", request_id)]
                if not any(name == b"cache-control" for name, _ in headers):
                    headers.append(NO_STORE)
            await send(message)

        try:
            scope[CALLER] = await self._caller(scope, credentials)
            await self.app(scope, receive, guarded)
        except ClientDisconnect:
            log.info("a client disconnected before its request was complete, request_id=%s", scope[problems.REQUEST_ID])
        except Exception as error:
            if status:
                # %r escapes line breaks in the path, which could forge lines of the log.
                log.exception("%s %r ended early, request_id=%s", scope["method"], scope["path"], request_id.decode())
            else:
                await problems.of_exception(scope, error)(scope, receive, guarded)
        finally:
            route = getattr(scope.get("route"), "path", "other")
            self.services.meters.answered(scope["method"], route, status, perf_counter() - started_at)

    async def _caller(self, scope: Scope, credentials: Credentials) -> Caller:
        gatekeeper, query = self.services.gatekeeper, scope["query_string"]
        try:
            return gatekeeper.check_request(scope["method"], scope["path"], query, credentials)
        except Unauthorized as refusal:
            if scope["method"] != "GET" or credentials.authorization:
                raise
            return await gatekeeper.check_link(query, refusal)

    async def _socket(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Checks a websocket. Pages of other sites are refused before the handshake.

        Any other error is a close code after the handshake, because browsers do not show HTTP errors of websockets.
        """
        credentials = Credentials.of(scope["headers"], scope.get("client"))
        _request_id(scope, credentials)
        gatekeeper, connection = self.services.gatekeeper, scope["extensions"][SOCKET]["connection"]
        subprotocols = scope["subprotocols"]
        try:
            caller = scope[CALLER] = await gatekeeper.check_socket(scope["query_string"], subprotocols, credentials)
            caller.quota.require_room()
        except (BadHost, ForeignPage) as error:
            await receive()
            await problems.of_error(scope, error)(scope, receive, send)
        except FootplateError as error:
            await receive()
            subprotocol = subprotocols[0] if subprotocols else None
            await send({"type": "websocket.accept", "subprotocol": subprotocol, "headers": []})
            await send({"type": "websocket.close", "code": close_code(error), "reason": close_reason(error.message)})
        else:
            scope[ACCEPTED_SUBPROTOCOL] = subprotocol_of(subprotocols)
            with caller.quota.holding(partial(connection.cut, 4401, "this key was deleted, or has expired")):
                await self.app(scope, receive, send)


def _request_id(scope: Scope, credentials: Credentials) -> bytes:
    """Returns the request id that the client sent, so that its log and ours agree. Makes one if none valid was sent."""
    request_id = credentials.request_id
    if not _REQUEST_ID.fullmatch(request_id):
        request_id = f"req_{uuid7()}".encode()
    scope[problems.REQUEST_ID] = request_id.decode()
    return request_id
