"""Reads OpenTelemetry's environment variables and computes the trace ids of attempts.

This module sends nothing and does not import OpenTelemetry, which is an optional package of service and worker.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from hashlib import sha256
from importlib.util import find_spec

from footplate.contract.ids import JobId

INSTALL = "run pip install 'footplate[otel]' on this machine, or unset the variable"
EXPORTER, PROPAGATORS = "OTEL_TRACES_EXPORTER", "OTEL_PROPAGATORS"
ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
FASTAPIS = "FASTAPI_OTEL_AUTO_CONFIGURE"
PROTOCOLS = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
OTHERS = ("OTEL_METRICS_EXPORTER", "OTEL_LOGS_EXPORTER")
NEEDED = ("opentelemetry.sdk.trace", "opentelemetry.exporter.otlp.proto.http.trace_exporter")
_TRACEPARENT = re.compile(r"00-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})")


@dataclass(frozen=True, slots=True)
class TraceSettings:
    """The meaning of OpenTelemetry's environment variables for a program."""

    is_on: bool
    """True if the variables turn traces on and traces can be sent."""
    wrong: str | None
    """A text about the variables that have no effect, each with what would work. None if all have an effect."""


def read_trace_settings(environ: Mapping[str, str]) -> TraceSettings:
    """Reads the variables OTEL_* and FASTAPI_OTEL_AUTO_CONFIGURE."""
    names = (name for name in environ if name.startswith("OTEL_") or name == FASTAPIS)
    variables = {name: environ[name] for name in names if environ[name].strip()}
    if variables.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return TraceSettings(False, None)
    endpoint = next((name for name in ENDPOINTS if name in variables), None)
    exporter = variables.get(EXPORTER, "otlp" if endpoint else "none")
    obstacles = [*_hindered(variables, exporter, endpoint or EXPORTER)] if exporter != "none" else []
    reasons = "; ".join([*obstacles, *_without_effect(variables)]) or None
    return TraceSettings(exporter != "none" and not obstacles, reasons)


def parts_of(traceparent: object) -> tuple[str, str, str] | None:
    """Returns the trace id, span id and flags of a W3C `traceparent`, or None if the text is not valid."""
    match = _TRACEPARENT.fullmatch(traceparent) if isinstance(traceparent, str) else None
    return None if match is None else (match[1], match[2], match[3])


def of_attempt(traceparent: object, job: JobId, attempt: int) -> str | None:
    """Returns the `traceparent` of an attempt's span, in the trace of the job's POST. None if the POST had no trace.

    The span id is computed from the job and the attempt. Nodes need the id when the attempt starts, but control sends
    the span only when the attempt has ended.
    """
    if (parts := parts_of(traceparent)) is None:
        return None
    trace, span, flags = parts
    span_id = sha256(f"{trace} {span} {job} {attempt}".encode()).hexdigest()[:16]
    return f"00-{trace}-{span_id}-{flags}"


def _hindered(variables: Mapping[str, str], exporter: str, variable: str) -> Iterator[str]:
    """Yields a sentence for each reason why no trace can be sent. `variable` is the variable that turned traces on."""
    if exporter != "otlp":
        yield f"{EXPORTER}={exporter} is not supported, so no trace is sent: use otlp or none"
    protocol = next((name for name in PROTOCOLS if name in variables), None)
    if protocol and variables[protocol] != "http/protobuf":
        yield f"{protocol}={variables[protocol]} is not supported, so no trace is sent: use http/protobuf, at port 4318"
    if missing_modules := [name for name in NEEDED if not _is_there(name)]:
        yield f"{variable} is set, but {missing_modules[0]} is not installed, so no trace is sent: {INSTALL}"


def _without_effect(variables: Mapping[str, str]) -> Iterator[str]:
    """Yields a sentence for each OpenTelemetry variable that has no effect here, such as one that turns on metrics."""
    for name in OTHERS:
        if variables.get(name, "none") != "none":
            yield f"{name} is set, but only traces are sent: metrics are at /metrics, logs on stderr"
    if FASTAPIS in variables:
        yield f"{FASTAPIS} is set, but FastAPI's own traces are off, because they may carry users' data"
    if "tracecontext" not in variables.get(PROPAGATORS, "tracecontext").split(","):
        yield f"{PROPAGATORS}={variables[PROPAGATORS]} is not supported: traces are propagated by traceparent"


def _is_there(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:
        return False
