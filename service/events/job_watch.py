"""Finds the jobs to follow, once per second for any number of readers."""

from __future__ import annotations

import asyncio
import time
from functools import partial
from typing import NamedTuple

from service.store import job_list
from service.store.database import Database
from service.store.job_list import Head, JobFilter
from service.store.times import now_ms

LOOK_SECONDS = 1.0
WINDOW_MS = 60_000
"""The age up to which jobs are found even if they have ended. It is longer than commits and clock differences."""
MOST = 1000


class JobsSeen(NamedTuple):
    at: int
    """Milliseconds. Every job created a window before is here, was in an earlier result, or has ended."""
    heads: list[Head]
    """The newest first. One more than MOST means that there are more."""


class JobWatch:
    def __init__(self, db: Database) -> None:
        self._db = db
        self._looks: dict[JobFilter, tuple[float, asyncio.Task[JobsSeen]]] = {}

    async def look(self, filter: JobFilter) -> JobsSeen:
        """Returns a result that is at most a second old."""
        now = time.monotonic()
        begun, task = self._looks.get(filter, (-LOOK_SECONDS, None))
        if task is None or now - begun >= LOOK_SECONDS:
            self._looks = {key: look for key, look in self._looks.items() if now - look[0] < LOOK_SECONDS}
            begun, task = self._looks[filter] = (now, asyncio.create_task(self.since(filter, now_ms() - WINDOW_MS)))
        return await asyncio.shield(task)

    async def since(self, filter: JobFilter, moment: int) -> JobsSeen:
        """Returns the present result, with the jobs that were created since that moment."""
        at = now_ms()
        heads = await self._db.read(partial(job_list.to_follow, filter=filter, limit=MOST + 1, since=moment))
        return JobsSeen(at, heads)
