"""Traces of a node's attempts.

OpenTelemetry's SDK is imported only if its variables request traces, and never by training. Training does not inherit
the variables, because a key of the collector may be among them.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

from footplate.contract.events import DoneData
from footplate.contract.messages import Grant
from footplate.contract.tracing import read_trace_settings

if TYPE_CHECKING:
    from worker.spans import AttemptSpans, SpanExporter

log = logging.getLogger("footplate.traces")


class Untraced:
    """Replaces `AttemptSpans` for an attempt that is not traced. Its methods do nothing."""

    def begin_phase(self, phase: str) -> None:
        """Ends the span of the last phase, and begins one for this phase."""

    def add_events(self, events: Sequence[Mapping[str, Any]]) -> None:
        """Adds training's events to the spans."""

    def record_outcome(self, outcome: DoneData) -> None:
        """Records the outcome, and begins the phase in which the last events are delivered."""

    def close(self) -> None: ...


if TYPE_CHECKING:
    Spans = Untraced | AttemptSpans


class Traces:
    """Creates the spans of this process's attempts. Only pool processes send spans, because threads end at a fork."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        settings = read_trace_settings(environ)
        self._sender: SpanExporter | None = None
        self._is_on = settings.is_on
        if settings.wrong:
            log.warning("%s", settings.wrong)
        if settings.is_on:
            # This module is imported here once, for all processes that are forked from this one.
            import worker.spans  # noqa: F401

            log.info("traces are sent, because the OTEL_ variables request them")

    def of(self, grant: Grant, node: str, since: int) -> Spans:
        """Returns the spans of an attempt. `since` is the time of its Celery message in nanoseconds."""
        if not self._is_on or grant.traceparent is None:
            return Untraced()
        from worker.spans import AttemptSpans, SpanExporter

        self._sender = self._sender or SpanExporter()
        return AttemptSpans(self._sender.tracer, grant, node, since)

    def close(self) -> None:
        """Sends the spans that were not sent yet. Waits for the collector for three seconds at most."""
        if self._sender is not None:
            self._sender.close()


@cache
def traces() -> Traces:
    return Traces(os.environ)
