"""Sends spans with OpenTelemetry's provider and exporter, which read OpenTelemetry's variables.

This module is imported only if the variables request traces.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from importlib.metadata import version

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_NAME, SERVICE_VERSION, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from opentelemetry.trace import Tracer
from starlette.types import ASGIApp

from footplate.contract.ids import JobId
from service.store.database import Database
from service.tracing.enabled import Notify, Untraced
from service.tracing.jobs import JobSpans
from service.tracing.requests import Traced

LAST_SECONDS = 5.0
"""The time that sending the last spans may take at the end of the process."""


class Ids(RandomIdGenerator):
    """Generates random span ids, or a given id for an attempt's span, to which nodes have already sent children."""

    def __init__(self) -> None:
        self._next: int | None = None

    @contextmanager
    def with_id(self, span: int | None) -> Iterator[None]:
        self._next = span
        try:
            yield
        finally:
            self._next = None

    def generate_span_id(self) -> int:
        return super().generate_span_id() if self._next is None else self._next


class Tracing(Untraced):
    """The tracing of one process. A thread sends the spans, and drops them if the collector is unreachable."""

    def __init__(self, role: str, wrong: str | None = None) -> None:
        super().__init__(wrong)
        self._jobs: JobSpans | None = None
        self.ids = Ids()
        self._provider = TracerProvider(resource=_resource(role), shutdown_on_exit=False, id_generator=self.ids)
        self._provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
        self.tracer: Tracer = self._provider.get_tracer("footplate", version("footplate"))

    def around(self, app: ASGIApp) -> ASGIApp:
        return Traced(app, self.tracer)

    def following(self, db: Database, notify: Notify) -> Notify:
        spans = self._jobs = JobSpans(self.tracer, self.ids.with_id, db.read)
        spans.start()

        def both(jobs: Collection[JobId]) -> None:
            notify(jobs)
            spans.mark_changed(jobs)

        return both

    async def close(self) -> None:
        """Sends the last spans, for at most LAST_SECONDS."""
        if self._jobs is not None:
            await self._jobs.close()
        done, loop = asyncio.Event(), asyncio.get_running_loop()

        def shut_down() -> None:
            self._provider.shutdown()
            _quietly(lambda: loop.call_soon_threadsafe(done.set))

        # A daemon thread, because the process must not wait for a collector that never answers.
        threading.Thread(target=shut_down, daemon=True, name="traces-end").start()
        try:
            await asyncio.wait_for(done.wait(), LAST_SECONDS)
        except TimeoutError:
            return


def _resource(role: str) -> Resource:
    """Returns the resource of this process's spans. OpenTelemetry's variables may add to it and change the name."""
    is_named = "OTEL_SERVICE_NAME" in os.environ or f"{SERVICE_NAME}=" in os.environ.get("OTEL_RESOURCE_ATTRIBUTES", "")
    name = {} if is_named else {SERVICE_NAME: "footplate"}
    return Resource.create({**name, SERVICE_VERSION: version("footplate"), "footplate.role": role})


def _quietly(call: Callable[[], object]) -> None:
    """Calls a function and ignores that the event loop may be closed by then."""
    try:
        call()
    except RuntimeError:
        return
