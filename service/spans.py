"""The spans of requests and of jobs' attempts, sent by OpenTelemetry's own provider and exporter.

A request has a span in the trace of its `traceparent` header, or in a new trace. The wait of a job, its attempts and
their phases have spans in the trace of its POST. These are made from SQL when an attempt has ended, because SQL has all
times by one clock. Each attempt is sent once, and attempts that end while no control works are left out.

This module is imported only if OpenTelemetry's variables request traces.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Collection
from contextlib import suppress
from importlib.metadata import version
from typing import Any

from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_NAME, SERVICE_VERSION, OTELResourceDetector, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from opentelemetry.trace import Span, SpanKind, Status, StatusCode, Tracer, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from footplate.contract.errors import FootplateError
from footplate.contract.ids import JobId
from footplate.contract.tracing import of_attempt, parts_of
from service.caches import Poller
from service.problems import REQUEST_ID
from service.store import traces
from service.store.database import Database
from service.store.times import now_ms
from service.store.traces import EndedAttempt
from service.tracing import TRACEPARENT, Notify, Untraced

LAST_SECONDS = 5.0
"""The time that sending the last spans may take at the end of the process."""
REMEMBERED_MS = 600_000
"""Attempts that ended longer ago are not sent, even if their job changes later."""
QUIET = frozenset({"/livez", "/readyz", "/metrics"})
"""Addresses that monitoring reads every few seconds. They get no spans."""
_BAD = frozenset({"failed", "lost"})
_PROPAGATOR = TraceContextTextMapPropagator()
_OF_TRACE = (b"traceparent", b"tracestate")


class Tracing(Untraced):
    """The tracing of one process. A thread sends the spans, and drops them if the collector is unreachable."""

    def __init__(self, role: str) -> None:
        resource = Resource.create(
            {SERVICE_NAME: "footplate", SERVICE_VERSION: version("footplate"), "footplate.role": role}
        )
        self.ids = Ids()
        self._provider = TracerProvider(
            resource=resource.merge(OTELResourceDetector().detect()), shutdown_on_exit=False, id_generator=self.ids
        )
        self._provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
        self.tracer: Tracer = self._provider.get_tracer("footplate", version("footplate"))
        self._jobs: JobSpans | None = None

    def around(self, app: ASGIApp) -> ASGIApp:
        return Traced(app, self.tracer)

    async def following(self, db: Database, notify: Notify) -> Notify:
        spans = self._jobs = JobSpans(self, db)
        await spans.start()

        def both(jobs: Collection[JobId]) -> None:
            notify(jobs)
            spans.changed.update(jobs)

        return both

    async def close(self) -> None:
        """Sends the last spans, for at most LAST_SECONDS."""
        if self._jobs is not None:
            await self._jobs.close()
        # A daemon thread, because the process must not wait for a collector that never answers.
        ending = threading.Thread(target=self._provider.shutdown, daemon=True, name="traces-end")
        ending.start()
        await asyncio.to_thread(ending.join, LAST_SECONDS)


class Ids(RandomIdGenerator):
    """Generates random span ids. An attempt's span gets a given id, because nodes have already sent spans below it."""

    next_span: int | None = None
    """The id of the next span. None: a random one."""

    def generate_span_id(self) -> int:
        span, self.next_span = self.next_span, None
        return super().generate_span_id() if span is None else span


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
    if path := getattr(scope.get("route"), "path", ""):
        span.update_name(f"{scope['method']} {path}")
        span.set_attribute("http.route", path)
    if request_id := scope.get(REQUEST_ID):
        span.set_attribute("footplate.request_id", request_id)
    if status:
        span.set_attribute("http.response.status_code", status)
    if status >= 500:
        span.set_status(Status(StatusCode.ERROR))
    span.end()


class JobSpans(Poller):
    """The spans of jobs' attempts: the wait before each, the attempt, and its phases."""

    seconds = 1.0

    def __init__(self, tracing: Tracing, db: Database) -> None:
        super().__init__(db)
        self._tracer, self._ids = tracing.tracer, tracing.ids
        self.changed: set[JobId] = set()
        """The jobs that have changed since spans of ended attempts were last sent."""
        self._sent_at: dict[tuple[JobId, int], int] = {}
        self._since = now_ms()

    async def close(self) -> None:
        """Ends the loop that sends spans, and sends the spans of attempts that have ended by now."""
        await super().close()
        with suppress(FootplateError):
            await self.refresh()

    async def _read(self) -> None:
        """Sends the spans of attempts that have ended since the last call. Each attempt is sent once."""
        changed_jobs = set(self.changed)
        if not changed_jobs:
            return
        self._since = max(self._since, now_ms() - REMEMBERED_MS)
        ended_attempts = await self._db.read(traces.ended, job_ids=changed_jobs, since=self._since)
        self.changed -= changed_jobs
        self._sent_at = {key: at for key, at in self._sent_at.items() if at >= self._since}
        for row in ended_attempts:
            if (row.job_id, row.attempt) not in self._sent_at:
                self._sent_at[row.job_id, row.attempt] = row.ended_at
                self._send(row)

    def _send(self, row: EndedAttempt) -> None:
        if (parts := parts_of(of_attempt(row.traceparent, row.job_id, row.attempt))) is None:
            return
        context = _PROPAGATOR.extract({"traceparent": row.traceparent})
        about: dict[str, Any] = {
            "footplate.job": row.job_id,
            "footplate.project": row.project,
            "footplate.attempt": row.attempt,
            "footplate.nodes": row.nodes,
        }
        self._span("wait", context, row.waits_since, row.placed_at, about).end(end_time=_ns(row.placed_at))
        ending = {"footplate.ending": row.ending, "footplate.reason": row.reason}
        self._ids.next_span = int(parts[1], 16)
        attempt = self._span(f"attempt {row.attempt}", context, row.placed_at, row.ended_at, {**about, **ending})
        inside, at = set_span_in_context(attempt), row.placed_at
        # Each phase lasts until the next begins. The last phase that has begun lasts to the end of the attempt.
        phases = [("claim", row.claimed_at), ("start", row.running_at), ("train", row.ended_at)]
        for name, until in phases:
            end = row.ended_at if until is None else until
            self._span(name, inside, at, end, about).end(end_time=_ns(end))
            at = end
            if until is None:
                break
        if row.ending in _BAD:
            attempt.set_status(Status(StatusCode.ERROR, row.error or row.reason))
        attempt.end(end_time=_ns(row.ended_at))

    def _span(self, name: str, context: Context, begin: int, end: int, about: dict[str, Any]) -> Span:
        attributes = {key: value for key, value in about.items() if value is not None}
        return self._tracer.start_span(name, context, attributes=attributes, start_time=_ns(min(begin, end)))


def _ns(milliseconds: int) -> int:
    return milliseconds * 1_000_000
