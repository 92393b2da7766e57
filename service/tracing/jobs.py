"""Spans of a job's attempts, in the trace of its POST: the wait, the attempt, and the attempt's phases.

The spans are made from SQL when an attempt has ended. SQL has the times of placement, claim, start and end, all by one
clock. Each attempt is sent once, and attempts that end while no control works are left out. Nodes send further spans
below the attempt's span.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from contextlib import AbstractContextManager, suppress
from functools import partial
from typing import Any

from opentelemetry.context import Context
from opentelemetry.trace import (
    NonRecordingSpan,
    Span,
    SpanContext,
    Status,
    StatusCode,
    TraceFlags,
    Tracer,
    set_span_in_context,
)

from footplate.contract.errors import FootplateError
from footplate.contract.ids import JobId
from footplate.contract.tracing import of_attempt, parts_of
from service.store import traces
from service.store.times import now_ms
from service.store.traces import Ended

log = logging.getLogger("footplate.traces")

LOOK_SECONDS = 1.0
REMEMBERED_MS = 600_000
"""Attempts that ended longer ago are not sent, even if their job changes later."""
_BAD = frozenset({"failed", "lost"})


class JobSpans:
    def __init__(
        self,
        tracer: Tracer,
        with_id: Callable[[int | None], AbstractContextManager[None]],
        ask: Callable[[Callable[[Any], Any]], Awaitable[Any]],
    ) -> None:
        """`with_id(id)` is a context in which a new span gets this id. `ask` runs a read on the database."""
        self._tracer, self._with_id, self._ask = tracer, with_id, ask
        self._changed: set[JobId] = set()
        self._sent_at: dict[tuple[JobId, int], int] = {}
        self._since = now_ms()
        self._task: asyncio.Task[None] | None = None

    def mark_changed(self, jobs: Iterable[JobId]) -> None:
        """Notes that these jobs have changed. Never blocks."""
        self._changed.update(jobs)

    def start(self) -> None:
        self._task = asyncio.create_task(self._run())

    async def close(self) -> None:
        """Stops, and sends the attempts that have ended by now."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        with suppress(FootplateError):
            await self.turn()

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            try:
                await self.turn()
            except FootplateError:
                continue  # SQL is unreachable. The changed jobs are still noted.
            except Exception:
                log.exception("the traces of some jobs lack their attempts")

    async def turn(self) -> None:
        changed = set(self._changed)
        if not changed:
            return
        self._since = max(self._since, now_ms() - REMEMBERED_MS)
        ended: list[Ended] = await self._ask(partial(traces.ended, job_ids=changed, since=self._since))
        self._changed -= changed
        self._sent_at = {key: at for key, at in self._sent_at.items() if at >= self._since}
        for row in ended:
            if (row.job, row.attempt) not in self._sent_at:
                self._sent_at[row.job, row.attempt] = row.ended_at
                self._send(row)

    def _send(self, row: Ended) -> None:
        context = _context_of(row.traceparent)
        if context is None:
            return
        about: dict[str, Any] = {
            "footplate.job": row.job,
            "footplate.project": row.project,
            "footplate.attempt": row.attempt,
            "footplate.nodes": row.nodes,
        }
        self._span("wait", context, row.waits_since, row.placed_at, about).end(end_time=_ns(row.placed_at))
        ending = {"footplate.ending": row.ending, "footplate.reason": row.reason}
        with self._with_id(_attempt_id(row)):
            attempt = self._span(f"attempt {row.attempt}", context, row.placed_at, row.ended_at, {**about, **ending})
        inside, at = set_span_in_context(attempt), row.placed_at
        # Each phase lasts until the next begins. The last phase that has begun lasts to the end of the attempt.
        phases = [("claim", row.claimed_at), ("start", row.running_at), ("train", row.ended_at)]
        for name, until in phases:
            end = row.ended_at if until is None else until
            self._span(name, inside, at, end, about).end(end_time=_ns(end))
            at = end
            if until is None:
                break
        if row.ending in _BAD:
            attempt.set_status(Status(StatusCode.ERROR, row.error or row.reason))
        attempt.end(end_time=_ns(row.ended_at))

    def _span(self, name: str, context: Context, begin: int, end: int, about: dict[str, Any]) -> Span:
        attributes = {key: value for key, value in about.items() if value is not None}
        return self._tracer.start_span(name, context, attributes=attributes, start_time=_ns(min(begin, end)))


def _context_of(traceparent: object) -> Context | None:
    """Returns the context in which the spans of a `traceparent` begin, or None if the text is not valid."""
    if (parts := parts_of(traceparent)) is None:
        return None
    trace, span, flags = (int(part, 16) for part in parts)
    return set_span_in_context(NonRecordingSpan(SpanContext(trace, span, True, TraceFlags(flags))))


def _attempt_id(row: Ended) -> int | None:
    parts = parts_of(of_attempt(row.traceparent, row.job, row.attempt))
    return int(parts[1], 16) if parts else None


def _ns(milliseconds: int) -> int:
    return milliseconds * 1_000_000
