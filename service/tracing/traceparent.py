"""`traceparent`, as the W3C has it: how a trace goes on from one program to another, and from a request to its job."""

from __future__ import annotations

from opentelemetry.context import Context
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags, set_span_in_context

from footplate.contract.tracing import parts_of


def written(span: SpanContext) -> str:
    return f"00-{span.trace_id:032x}-{span.span_id:016x}-{span.trace_flags:02x}"


def read(text: object) -> Context | None:
    """A context to begin spans in. None: there is none."""
    if (parts := parts_of(text)) is None:
        return None
    trace, span, flags = (int(one, 16) for one in parts)
    return set_span_in_context(NonRecordingSpan(SpanContext(trace, span, True, TraceFlags(flags))))
