"""One attempt on one node, as spans below the one that control sends of it.

    supervise                 from the bell to the last acknowledgement
      ask                     until control has granted it
      meet                    until the other nodes have claimed theirs, where there are any
      launch                  forked, and what the spec names is built
      training                until it is gone; each checkpoint is an event of it
        first step            until the first one was done
      hand over               until SQL has all that was said

OpenTelemetry's own provider and exporter, set up by its own variables. Imported only where they ask for it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from typing import Any

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_NAME, SERVICE_VERSION, OTELResourceDetector, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import Status, StatusCode, Tracer, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from opentelemetry.util.types import AttributeValue

from footplate.contract.events import DoneData, Ending, Kind
from footplate.contract.messages import Grant

LAST_SECONDS = 3.0
"""How long what is left may take to be sent, at the end of a node: Celery waits no longer for its pool."""
STEPPED = frozenset({Kind.PROGRESS, Kind.LOG})


class Sender:
    """One for a pool process. It sends from a thread of its own, and drops what a collector that is away piles up."""

    def __init__(self) -> None:
        own = Resource.create(
            {SERVICE_NAME: "footplate", SERVICE_VERSION: version("footplate"), "footplate.role": "node"}
        )
        self._provider = TracerProvider(resource=own.merge(OTELResourceDetector().detect()), shutdown_on_exit=False)
        self._provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
        self.tracer: Tracer = self._provider.get_tracer("footplate", version("footplate"))

    def close(self) -> None:
        # Not a thread that the process would wait for: a collector may take the connection and never answer.
        ending = threading.Thread(target=self._provider.shutdown, daemon=True, name="traces-end")
        ending.start()
        ending.join(LAST_SECONDS)


class AttemptSpans:
    def __init__(self, tracer: Tracer, grant: Grant, node: str, since: int) -> None:
        self._tracer = tracer
        about: dict[str, AttributeValue] = {
            "footplate.job": grant.job,
            "footplate.attempt": grant.attempt,
            "footplate.node": node,
            "footplate.source": grant.source,
        }
        above = TraceContextTextMapPropagator().extract({"traceparent": grant.traceparent or ""})
        self._whole = tracer.start_span("supervise", above, attributes=about, start_time=since)
        self._inside = set_span_in_context(self._whole)
        self._phase = tracer.start_span("ask", self._inside, start_time=since)
        self._runs_since = 0
        self._has_stepped = False

    def begins(self, phase: str) -> None:
        now = time.time_ns()
        self._phase.end(now)
        self._phase = self._tracer.start_span(phase, self._inside, start_time=now)

    def heard(self, events: Sequence[Mapping[str, Any]]) -> None:
        for event in events:
            kind = event["kind"]
            if kind == Kind.STATE and not self._runs_since:
                self._runs_since = time.time_ns()
                self.begins("training")
            elif kind in STEPPED and not self._has_stepped and self._runs_since and event.get("step"):
                self._has_stepped = True
                self._first_step(event["step"])
            elif kind == Kind.CHECKPOINT:
                said = {name: event["data"].get(name) for name in ("status", "bytes")} | {"step": event.get("step")}
                known = {f"footplate.{name}": value for name, value in said.items() if isinstance(value, int | str)}
                self._phase.add_event("checkpoint", known)

    def _first_step(self, step: int) -> None:
        """Of this attempt: one that continues begins in the midst."""
        inside = set_span_in_context(self._phase)
        about = {"footplate.step": step}
        self._tracer.start_span("first step", inside, attributes=about, start_time=self._runs_since).end()

    def ends(self, done: DoneData) -> None:
        self._whole.set_attributes({"footplate.ending": done.ending, "footplate.reason": done.reason})
        if done.ending is Ending.FAILED:
            failed = Status(StatusCode.ERROR, done.error.code if done.error else done.reason)
            self._phase.set_status(failed)
            self._whole.set_status(failed)
        self.begins("hand over")

    def close(self) -> None:
        self._phase.end()
        self._whole.end()
