"""Which jobs there are to follow: looked up once a second for however many want to know."""

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
"""Jobs as young are seen even if they are over already. It outlasts a commit, and clocks that differ."""
MOST = 1000


class Sight(NamedTuple):
    at: int
    """Milliseconds: every job that was made a window before is in sight, or was in an earlier one, or is over."""
    heads: list[Head]
    """Newest first. One more than MOST tells that there are more."""


class Lookout:
    def __init__(self, db: Database) -> None:
        self._db = db
        self._looks: dict[JobFilter, tuple[float, asyncio.Task[Sight]]] = {}

    async def look(self, filter: JobFilter) -> Sight:
        """At most a second old."""
        now = time.monotonic()
        begun, task = self._looks.get(filter, (-LOOK_SECONDS, None))
        if task is None or now - begun >= LOOK_SECONDS:
            self._looks = {key: look for key, look in self._looks.items() if now - look[0] < LOOK_SECONDS}
            begun, task = self._looks[filter] = (now, asyncio.create_task(self.since(filter, now_ms() - WINDOW_MS)))
        return await asyncio.shield(task)

    async def since(self, filter: JobFilter, moment: int) -> Sight:
        """As of now, with the jobs that were made since that moment."""
        at = now_ms()
        found = await self._db.read(partial(job_list.to_follow, filter=filter, limit=MOST + 1, since=moment))
        return Sight(at, found)
