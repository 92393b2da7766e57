"""`traceparent`, as the W3C has it: how a trace goes on from one program to another, and from a request to its job."""

from __future__ import annotations

import re

from opentelemetry.context import Context
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags, set_span_in_context

_FORM = re.compile(r"00-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})")


def written(span: SpanContext) -> str:
    return f"00-{span.trace_id:032x}-{span.span_id:016x}-{span.trace_flags:02x}"


def read(text: object) -> Context | None:
    """A context to begin spans in. None: there is none."""
    found = _FORM.fullmatch(text) if isinstance(text, str) else None
    if found is None:
        return None
    trace, span, flags = (int(one, 16) for one in found.groups())
    return set_span_in_context(NonRecordingSpan(SpanContext(trace, span, True, TraceFlags(flags))))
