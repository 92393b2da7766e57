"""Traces of the service. OpenTelemetry's SDK (spans.py) is imported only if its variables ask for traces."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping

from starlette.types import ASGIApp

from footplate.contract.ids import JobId
from footplate.contract.tracing import asked
from service.store.database import Database

log = logging.getLogger("footplate.traces")

Notify = Callable[[Collection[JobId]], None]
"""A function that is called with the jobs that have changed."""

TRACEPARENT = "footplate.traceparent"
"""The key of a request's scope that holds its trace, while traces are sent."""


class Untraced:
    """Sends nothing, and returns what should be traced as it is."""

    wrong: str | None = None
    """The mistake in OpenTelemetry's variables, if there is one."""

    def around(self, app: ASGIApp) -> ASGIApp:
        return app

    def following(self, db: Database, notify: Notify) -> Notify:
        """Returns a function that calls `notify` with the changed jobs, and also traces them if tracing is on."""
        return notify

    async def close(self) -> None: ...


def begin(role: str, environ: Mapping[str, str]) -> Untraced:
    """Returns the tracing of this process, whose role is its name in traces."""
    settings = asked(environ)
    tracing = Untraced()
    if settings.is_on:
        # The SDK is an extra, and slow to import.
        from service.spans import Tracing

        tracing = Tracing(role)
        log.info("traces are sent, as OTEL_* says")
    if settings.wrong:
        log.warning("%s", settings.wrong)
    tracing.wrong = settings.wrong
    return tracing
