"""Sends a span for each request, in the trace of its `traceparent` header or in a new trace."""

from __future__ import annotations

from opentelemetry.trace import Span, SpanKind, Status, StatusCode, Tracer
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.problems import REQUEST_ID
from service.tracing.enabled import TRACEPARENT

QUIET = frozenset({"/livez", "/readyz", "/metrics"})
"""Addresses that monitoring reads every few seconds. They get no spans."""
_PROPAGATOR = TraceContextTextMapPropagator()
_OF_TRACE = (b"traceparent", b"tracestate")


class Traced:
    """Traces the requests of an app. Websockets have no span, because they are open for hours."""

    def __init__(self, app: ASGIApp, tracer: Tracer) -> None:
        self._app, self._tracer = app, tracer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in QUIET:
            await self._app(scope, receive, send)
            return
        span, status = self._begin(scope), 0
        context = span.get_span_context()
        scope[TRACEPARENT] = f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"

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
        # The query is left out, because it may contain a ticket.
        attributes = {"http.request.method": scope["method"], "url.path": scope["path"]}
        context = _PROPAGATOR.extract(carrier)
        return self._tracer.start_span(scope["method"], context, kind=SpanKind.SERVER, attributes=attributes)


def _end(span: Span, scope: Scope, status: int) -> None:
    route = scope.get("route")
    path = route if isinstance(route, str) else getattr(route, "path", "")
    if path:
        span.update_name(f"{scope['method']} {path}")
        span.set_attribute("http.route", path)
    if request_id := scope.get(REQUEST_ID):
        span.set_attribute("footplate.request_id", request_id)
    if status:
        span.set_attribute("http.response.status_code", status)
    if status >= 500:
        span.set_status(Status(StatusCode.ERROR))
    span.end()
