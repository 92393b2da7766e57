"""The tracing of a process that sends no traces. If OpenTelemetry's variables request traces, spans.py replaces it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection

from starlette.types import ASGIApp

from footplate.contract.ids import JobId
from service.store.database import Database

log = logging.getLogger("footplate.traces")

Notify = Callable[[Collection[JobId]], None]
"""A function that is called with the jobs that have changed."""

TRACEPARENT = "footplate.traceparent"
"""The key of a request's scope that holds its trace, while traces are sent."""


class Untraced:
    """Tracing that is off: the app and the callback are returned unchanged."""

    wrong: str | None = None
    """The mistake in OpenTelemetry's variables, if there is one."""

    def around(self, app: ASGIApp) -> ASGIApp:
        return app

    async def following(self, db: Database, notify: Notify) -> Notify:
        """Returns a function that calls `notify` with the changed jobs, and also traces them if tracing is on."""
        return notify

    async def close(self) -> None: ...
