"""What became of a job, as spans of the trace that its POST was part of: how long it waited, and each attempt.

They are made from SQL when an attempt has ended: there it says when it was placed, claimed, trained and done, by one
clock. Each is sent once; what ends while no control works is left out. Nodes put theirs below the attempt's.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from contextlib import AbstractContextManager, suppress
from functools import partial
from typing import Any

from opentelemetry.context import Context
from opentelemetry.trace import Span, Status, StatusCode, Tracer, set_span_in_context

from footplate.contract.errors import FootplateError
from footplate.contract.ids import JobId
from footplate.contract.tracing import of_attempt, parts_of
from service.store import traces
from service.store.times import now_ms
from service.store.traces import Ended
from service.tracing.traceparent import read

log = logging.getLogger("footplate.traces")

LOOK_SECONDS = 1.0
REMEMBERED_MS = 600_000
"""An attempt that ended longer ago is old news to whoever says that its job has changed."""
_BAD = frozenset({"failed", "lost"})


class JobSpans:
    def __init__(
        self,
        tracer: Tracer,
        known: Callable[[int | None], AbstractContextManager[None]],
        ask: Callable[[Callable[[Any], Any]], Awaitable[Any]],
    ) -> None:
        """Within `known(id)` a span that begins has this id."""
        self._tracer, self._known, self._ask = tracer, known, ask
        self._changed: set[JobId] = set()
        self._told: dict[tuple[JobId, int], int] = {}
        self._since = now_ms()
        self._task: asyncio.Task[None] | None = None

    def heard(self, jobs: Iterable[JobId]) -> None:
        """These have changed. Never blocks."""
        self._changed.update(jobs)

    def start(self) -> None:
        self._task = asyncio.create_task(self._run())

    async def close(self) -> None:
        """What has ended by now is told."""
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
                continue  # SQL is away, and what has changed is still known
            except Exception:
                log.exception("what some jobs did is missing in their traces")

    async def turn(self) -> None:
        changed = set(self._changed)
        if not changed:
            return
        self._since = max(self._since, now_ms() - REMEMBERED_MS)
        ended: list[Ended] = await self._ask(partial(traces.ended, job_ids=changed, since=self._since))
        self._changed -= changed
        self._told = {key: at for key, at in self._told.items() if at >= self._since}
        for one in ended:
            if (one.job, one.attempt) not in self._told:
                self._told[one.job, one.attempt] = one.ended_at
                self._tell(one)

    def _tell(self, one: Ended) -> None:
        context = read(one.traceparent)
        if context is None:
            return
        about: dict[str, Any] = {
            "footplate.job": one.job,
            "footplate.project": one.project,
            "footplate.attempt": one.attempt,
            "footplate.nodes": one.nodes,
        }
        self._span("wait", context, one.waits_since, one.placed_at, about).end(end_time=_ns(one.placed_at))
        ending = {"footplate.ending": one.ending, "footplate.reason": one.reason}
        with self._known(_own_id(one)):
            attempt = self._span(f"attempt {one.attempt}", context, one.placed_at, one.ended_at, {**about, **ending})
        inside, at = set_span_in_context(attempt), one.placed_at
        # Each goes on until the next begins, and the last one that has begun to the end.
        steps = [("claim", one.claimed_at), ("start", one.running_at), ("train", one.ended_at)]
        for name, until in steps:
            end = one.ended_at if until is None else until
            self._span(name, inside, at, end, about).end(end_time=_ns(end))
            at = end
            if until is None:
                break
        if one.ending in _BAD:
            attempt.set_status(Status(StatusCode.ERROR, one.error or one.reason))
        attempt.end(end_time=_ns(one.ended_at))

    def _span(self, name: str, context: Context, begin: int, end: int, about: dict[str, Any]) -> Span:
        known = {key: value for key, value in about.items() if value is not None}
        return self._tracer.start_span(name, context, attributes=known, start_time=_ns(min(begin, end)))


def _own_id(one: Ended) -> int | None:
    parts = parts_of(of_attempt(one.traceparent, one.job, one.attempt))
    return int(parts[1], 16) if parts else None


def _ns(milliseconds: int) -> int:
    return milliseconds * 1_000_000
