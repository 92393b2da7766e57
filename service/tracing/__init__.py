"""Traces of the service. OpenTelemetry's SDK is imported only if its variables ask for traces."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from footplate.contract.tracing import asked
from service.tracing.enabled import Untraced

log = logging.getLogger("footplate.traces")


def begin(role: str, environ: Mapping[str, str]) -> Untraced:
    """Returns the tracing of this process, whose role is its name in traces."""
    settings = asked(environ)
    if settings.wrong:
        log.warning("%s", settings.wrong)
    if not settings.is_on:
        return Untraced(settings.wrong)
    # The SDK is an extra, and slow to import.
    from service.tracing.tracer import Tracing

    log.info("traces are sent, as OTEL_* says")
    return Tracing(role, settings.wrong)
