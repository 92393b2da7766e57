"""The API as one ASGI app: the guard, then FastAPI's routes.

guard      host, origin, key, request id, security headers, one count per answer, the last resort for exceptions
routes     service/api/*: parse, call one verb, answer
"""

from __future__ import annotations

import logging
import re
from functools import partial
from time import perf_counter

from fastapi import FastAPI
from fastapi.telemetry import TelemetryConfig
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from footplate.contract.errors import FootplateError, Unavailable
from footplate.contract.ids import uuid7
from service import problems
from service.api import (
    bulk,
    bundles,
    checkpoints,
    curves,
    dashboard,
    deliveries,
    files,
    forks,
    history,
    jobs,
    keys,
    listing,
    logs,
    nodes,
    openapi,
    outputs,
    queue,
    stream,
    stream_many,
    system,
    verbs,
    webhooks,
)
from service.auth import Credentials, ForeignPage, subprotocol_of
from service.callers import CALLER
from service.deps import Services
from service.problems import BadHost
from service.server import SOCKET, close_reason

log = logging.getLogger("footplate.api")

SECURITY_HEADERS = [
    (b"x-content-type-options", b"nosniff"),
    (b"content-security-policy", b"default-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'self'"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
]
NO_STORE = (b"cache-control", b"no-store")
SUBPROTOCOL = "footplate.subprotocol"
NO_TELEMETRY: TelemetryConfig = {"tracing": False, "metrics": False, "logs": False, "auto_configure": False}
"""FastAPI's own would send bodies and queries to whoever the environment names. Ours: service/tracing."""
_CLOSE_CODES = {401: 4401, 403: 4403, 404: 4404, 422: 4400, 429: 4429}
_REQUEST_ID = re.compile(rb"[A-Za-z0-9._:-]{1,64}")


def create_app(services: Services) -> ASGIApp:
    """Everything but the server."""
    app = routes()
    app.state.services = services
    problems.install(app)
    app.router.default = problems.nothing_here
    return Guard(app, services)


def routes() -> FastAPI:
    """All of them and nothing behind them, which is enough to describe them."""
    app = FastAPI(
        title="Footplate", version="0.1.0", docs_url=None, redoc_url=None, openapi_url=None, redirect_slashes=False,
        telemetry=NO_TELEMETRY,
    )  # fmt: skip
    # The busiest first: routes are tried in order.
    for part in (
        jobs,
        verbs,
        bulk,
        forks,
        history,
        curves,
        logs,
        stream,
        stream_many,
        listing,
        checkpoints,
        outputs,
        bundles,
        files,
        nodes,
        queue,
        keys,
        webhooks,
        deliveries,
        system,
        openapi,
        dashboard,
    ):
        # As they are: a router that is included is matched through a second one, at twice the cost.
        app.router.routes.extend(part.router.routes)
    return app


class Guard:
    """Around everything, websockets included. Plain ASGI, because it is on the way of every request."""

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
        started = perf_counter()
        given = Credentials.of(scope["headers"], scope.get("client"))
        request_id = _request_id(scope, given)
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
            check = self.services.gatekeeper.check_request
            scope[CALLER] = check(scope["method"], scope["path"], scope["query_string"], given)
            await self.app(scope, receive, guarded)
        except FootplateError as error:
            await problems.of_error(scope, error)(scope, receive, guarded)
        except ClientDisconnect:
            log.info("a client left in the midst of its request, request_id=%s", scope[problems.REQUEST_ID])
        except Exception:
            # As Python writes it: a path may hold line breaks, and would forge lines.
            log.exception("%s %r failed, request_id=%s", scope["method"], scope["path"], scope[problems.REQUEST_ID])
            if not status:
                await problems.unexpected(scope)(scope, receive, guarded)
        finally:
            self.services.meters.answered(scope["method"], _route(scope), status, perf_counter() - started)

    async def _socket(self, scope: Scope, receive: Receive, send: Send) -> None:
        """A foreign page is refused before the handshake; all else is told by a close code, which browsers see."""
        given = Credentials.of(scope["headers"], scope.get("client"))
        _request_id(scope, given)
        gatekeeper, connection = self.services.gatekeeper, scope["extensions"][SOCKET]["connection"]
        offered = scope["subprotocols"]
        try:
            caller = scope[CALLER] = await gatekeeper.check_socket(scope["query_string"], offered, given)
            caller.standing.require_room()
        except (BadHost, ForeignPage) as error:
            await receive()
            await problems.of_error(scope, error)(scope, receive, send)
        except FootplateError as error:
            await receive()
            await send({"type": "websocket.accept", "subprotocol": offered[0] if offered else None, "headers": []})
            await send({"type": "websocket.close", "code": _close_code(error), "reason": close_reason(error.message)})
        else:
            scope[SUBPROTOCOL] = subprotocol_of(offered)
            with caller.standing.holding(partial(connection.cut, 4401, "this key was deleted, or has expired")):
                await self.app(scope, receive, send)


def _close_code(error: FootplateError) -> int:
    return 1012 if isinstance(error, Unavailable) else _CLOSE_CODES.get(error.status, 4400)


def _route(scope: Scope) -> str:
    found = scope.get("route")
    return found if isinstance(found, str) else getattr(found, "path", "other")


def _request_id(scope: Scope, given: Credentials) -> bytes:
    """The caller's own if it looks like one, so that its logs and ours meet."""
    found = given.request_id
    if not _REQUEST_ID.fullmatch(found):
        found = f"req_{uuid7()}".encode()
    scope[problems.REQUEST_ID] = found.decode()
    return found
