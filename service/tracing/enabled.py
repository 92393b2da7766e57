"""Whether one process of the service sends traces. What sends is imported only where it does.

(OpenTelemetry's bare API comes with FastAPI, and does nothing.)
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping

from starlette.types import ASGIApp

from footplate.contract.ids import JobId
from footplate.contract.tracing import asked
from service.store.database import Database

log = logging.getLogger("footplate.traces")
Tell = Callable[[Collection[JobId]], None]

TRACEPARENT = "footplate.traceparent"
"""Where a request's is in its scope, while traces are sent."""


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
