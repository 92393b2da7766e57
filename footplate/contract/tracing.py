"""Traces, where OpenTelemetry's own variables ask for them: what of that can be done here, and where an attempt stands.

Nothing is sent from here, and nothing of OpenTelemetry's is imported: who sends is an extra, on either side.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from hashlib import sha256
from importlib.util import find_spec

from footplate.contract.ids import JobId

INSTALL = "pip install 'footplate[otel]' where it runs, or unset it"
EXPORTER, PROPAGATORS = "OTEL_TRACES_EXPORTER", "OTEL_PROPAGATORS"
ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
FASTAPIS = "FASTAPI_OTEL_AUTO_CONFIGURE"
PROTOCOLS = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
OTHERS = ("OTEL_METRICS_EXPORTER", "OTEL_LOGS_EXPORTER")
NEEDED = ("opentelemetry.sdk.trace", "opentelemetry.exporter.otlp.proto.http.trace_exporter")
_TRACEPARENT = re.compile(r"00-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})")


@dataclass(frozen=True, slots=True)
class Asked:
    is_on: bool
    """Traces are asked for, and can be sent."""
    wrong: str | None
    """What of it is not done, and what would work."""


def asked(environ: Mapping[str, str]) -> Asked:
    ours = (name for name in environ if name.startswith("OTEL_") or name == FASTAPIS)
    given = {name: environ[name] for name in ours if environ[name].strip()}
    if given.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return Asked(False, None)
    endpoint = next((name for name in ENDPOINTS if name in given), None)
    exporter = given.get(EXPORTER, "otlp" if endpoint else "none")
    hindered = [*_hindered(given, exporter, endpoint or EXPORTER)] if exporter != "none" else []
    wrong = "; ".join([*hindered, *_beside(given)]) or None
    return Asked(exporter != "none" and not hindered, wrong)


def parts_of(traceparent: object) -> tuple[str, str, str] | None:
    """Trace, span and flags of a `traceparent`, as the W3C has it. None: it is none."""
    found = _TRACEPARENT.fullmatch(traceparent) if isinstance(traceparent, str) else None
    return None if found is None else (found[1], found[2], found[3])


def of_attempt(traceparent: object, job: JobId, attempt: int) -> str | None:
    """The attempt's own, in the trace that its job's POST was part of. Everybody who asks comes to the same one: nodes
    put their spans below a span that control sends only once the attempt has ended."""
    if (parts := parts_of(traceparent)) is None:
        return None
    trace, span, flags = parts
    own = sha256(f"{trace} {span} {job} {attempt}".encode()).hexdigest()[:16]
    return f"00-{trace}-{own}-{flags}"


def _hindered(given: Mapping[str, str], exporter: str, who: str) -> Iterator[str]:
    """Why no trace is sent."""
    if exporter != "otlp":
        yield f"{EXPORTER}={exporter} is not to be had, so no trace is sent: otlp and none are"
    protocol = next((name for name in PROTOCOLS if name in given), None)
    if protocol and given[protocol] != "http/protobuf":
        yield f"{protocol}={given[protocol]} is not to be had, so no trace is sent: http/protobuf is, at port 4318"
    if missing := [name for name in NEEDED if not _is_there(name)]:
        yield f"{who} is set, and {missing[0]} is not installed, so no trace is sent: {INSTALL}"


def _beside(given: Mapping[str, str]) -> Iterator[str]:
    """What is asked for beside traces, and is not done."""
    for name in OTHERS:
        if given.get(name, "none") != "none":
            yield f"{name} is set, and traces are all that is sent: metrics are at /metrics, logs on stderr"
    if FASTAPIS in given:
        yield f"{FASTAPIS} is set, and FastAPI's own traces are off: they may carry what users send"
    if "tracecontext" not in given.get(PROPAGATORS, "tracecontext").split(","):
        yield f"{PROPAGATORS}={given[PROPAGATORS]} is not to be had: a trace goes on by its traceparent"


def _is_there(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:
        return False
