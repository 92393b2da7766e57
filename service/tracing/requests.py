"""A span for each request, in the trace that its `traceparent` names, or in one of its own."""

from __future__ import annotations

from opentelemetry.trace import Span, SpanKind, Status, StatusCode, Tracer
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.problems import REQUEST_ID
from service.tracing.enabled import TRACEPARENT
from service.tracing.traceparent import written

QUIET = frozenset({"/livez", "/readyz", "/metrics"})
"""What asks every few seconds whether we are there."""
_PROPAGATOR = TraceContextTextMapPropagator()
_OF_TRACE = (b"traceparent", b"tracestate")


class Traced:
    """Around the whole app. Sockets have no span: they are open for hours, and say nothing at their end."""

    def __init__(self, app: ASGIApp, tracer: Tracer) -> None:
        self._app, self._tracer = app, tracer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in QUIET:
            await self._app(scope, receive, send)
            return
        span, status = self._begin(scope), 0
        scope[TRACEPARENT] = written(span.get_span_context())

        async def sending(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, sending)
        finally:
            _end(span, scope, status)

    def _begin(self, scope: Scope) -> Span:
        carrier = {name.decode(): value.decode("latin-1") for name, value in scope["headers"] if name in _OF_TRACE}
        # Never the query: a ticket may be in it.
        attributes = {"http.request.method": scope["method"], "url.path": scope["path"]}
        context = _PROPAGATOR.extract(carrier)
        return self._tracer.start_span(scope["method"], context, kind=SpanKind.SERVER, attributes=attributes)


def _end(span: Span, scope: Scope, status: int) -> None:
    found = scope.get("route")
    route = found if isinstance(found, str) else getattr(found, "path", "")
    if route:
        span.update_name(f"{scope['method']} {route}")
        span.set_attribute("http.route", route)
    if request_id := scope.get(REQUEST_ID):
        span.set_attribute("footplate.request_id", request_id)
    if status:
        span.set_attribute("http.response.status_code", status)
    if status >= 500:
        span.set_status(Status(StatusCode.ERROR))
    span.end()
