"""The spans of one attempt on one node, below the span that control sends for the attempt.

    supervise                 from the Celery message to the last acknowledgement
      claim                   until control grants the claim
      rendezvous              until every other node has claimed, if there are several
      launch                  until the processes are forked and the parts of the spec are built
      training                until nothing of training is left; each checkpoint is an event in this span
        first step            until the first step is done
      deliver                 until SQL has all events

OpenTelemetry's own provider and exporter are used, configured by its own variables. This module is imported only if
these variables request traces.
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
"""The longest time for sending the last spans at a node's end. Celery waits no longer for its pool processes."""
STEPPED = frozenset({Kind.PROGRESS, Kind.LOG})


class SpanExporter:
    """Exports the spans of one pool process from a thread. Spans are dropped if no collector answers."""

    def __init__(self) -> None:
        base = Resource.create(
            {SERVICE_NAME: "footplate", SERVICE_VERSION: version("footplate"), "footplate.role": "node"}
        )
        self._provider = TracerProvider(resource=base.merge(OTELResourceDetector().detect()), shutdown_on_exit=False)
        self._provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
        self.tracer: Tracer = self._provider.get_tracer("footplate", version("footplate"))

    def close(self) -> None:
        # The process must not wait for this thread, because a collector may accept a connection and never answer.
        ending = threading.Thread(target=self._provider.shutdown, daemon=True, name="traces-end")
        ending.start()
        ending.join(LAST_SECONDS)


class AttemptSpans:
    """The open spans of one attempt: the whole attempt, and its current phase."""

    def __init__(self, tracer: Tracer, grant: Grant, node: str, since: int) -> None:
        self._tracer = tracer
        about: dict[str, AttributeValue] = {
            "footplate.job": grant.job,
            "footplate.attempt": grant.attempt,
            "footplate.node": node,
            "footplate.source": grant.source,
        }
        parent = TraceContextTextMapPropagator().extract({"traceparent": grant.traceparent or ""})
        self._attempt = tracer.start_span("supervise", parent, attributes=about, start_time=since)
        self._inside = set_span_in_context(self._attempt)
        self._phase = tracer.start_span("claim", self._inside, start_time=since)
        self._runs_since = 0
        self._has_stepped = False

    def begin_phase(self, phase: str) -> None:
        now = time.time_ns()
        self._phase.end(now)
        self._phase = self._tracer.start_span(phase, self._inside, start_time=now)

    def add_events(self, events: Sequence[Mapping[str, Any]]) -> None:
        for event in events:
            kind = event["kind"]
            if kind == Kind.STATE and not self._runs_since:
                self._runs_since = time.time_ns()
                self.begin_phase("training")
            elif kind in STEPPED and not self._has_stepped and self._runs_since and event.get("step"):
                self._has_stepped = True
                # If the attempt continues, its first step is not step 1.
                inside, about = set_span_in_context(self._phase), {"footplate.step": event["step"]}
                self._tracer.start_span("first step", inside, attributes=about, start_time=self._runs_since).end()
            elif kind == Kind.CHECKPOINT:
                facts = {name: event["data"].get(name) for name in ("status", "bytes")} | {"step": event.get("step")}
                attributes = {f"footplate.{name}": fact for name, fact in facts.items() if isinstance(fact, int | str)}
                self._phase.add_event("checkpoint", attributes)

    def record_outcome(self, outcome: DoneData) -> None:
        self._attempt.set_attributes({"footplate.ending": outcome.ending, "footplate.reason": outcome.reason})
        if outcome.ending is Ending.FAILED:
            error_status = Status(StatusCode.ERROR, outcome.error.code if outcome.error else outcome.reason)
            self._phase.set_status(error_status)
            self._attempt.set_status(error_status)
        self.begin_phase("deliver")

    def close(self) -> None:
        self._phase.end()
        self._attempt.end()
