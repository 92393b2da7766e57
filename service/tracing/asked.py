"""Whether traces are asked for, by OpenTelemetry's own variables, and what of them cannot be done here.

Nothing that sends is imported without these variables. (OpenTelemetry's bare API comes with FastAPI, and does nothing.)
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from importlib.util import find_spec

from starlette.types import ASGIApp

from contract.ids import JobId
from service.store.database import Database

log = logging.getLogger("footplate.traces")
Tell = Callable[[Collection[JobId]], None]

TRACEPARENT = "footplate.traceparent"
"""Where a request's is in its scope, while traces are sent."""
INSTALL = "pip install 'footplate[otel]' where the service runs, or unset it"
EXPORTER, PROPAGATORS = "OTEL_TRACES_EXPORTER", "OTEL_PROPAGATORS"
ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
FASTAPIS = "FASTAPI_OTEL_AUTO_CONFIGURE"
PROTOCOLS = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
OTHERS = ("OTEL_METRICS_EXPORTER", "OTEL_LOGS_EXPORTER")
NEEDED = ("opentelemetry.sdk.trace", "opentelemetry.exporter.otlp.proto.http.trace_exporter")


@dataclass(frozen=True, slots=True)
class Asked:
    is_on: bool
    """Traces are asked for, and can be sent."""
    wrong: str | None
    """What of it is not done, and what would work."""


class Untraced:
    """Sends nothing, and costs nothing: what is asked to be traced is handed back as it is."""

    def __init__(self, wrong: str | None = None) -> None:
        self.wrong = wrong
        """As Asked."""

    def around(self, app: ASGIApp) -> ASGIApp:
        return app

    def following(self, db: Database, tell: Tell) -> Tell:
        """Hears which jobs have changed, and tells them on."""
        return tell

    async def close(self) -> None: ...


def begin(role: str, environ: Mapping[str, str]) -> Untraced:
    """For one process of the service."""
    found = asked(environ)
    if found.wrong:
        log.warning("%s", found.wrong)
    if not found.is_on:
        return Untraced(found.wrong)
    # Here: it is an extra, and takes its time.
    from service.tracing.tracer import Tracing

    log.info("traces are sent, as OTEL_* says")
    return Tracing(role, found.wrong)


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
