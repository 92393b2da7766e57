"""Which projects have a webhook to tell, at hand: a POST of a job where there is none asks SQL nothing.

Only POST relies on it. Read anew twice a second, so a webhook that another API process has made hears of the jobs that
are submitted here from then on within a second; of every move after that it hears at once.
"""

from __future__ import annotations

import asyncio

from service.cache import Fresh
from service.store import webhooks
from service.store.database import Database


class Listening(Fresh):
    SECONDS = 0.5

    def __init__(self, db: Database) -> None:
        super().__init__()
        self._db = db
        self._projects: frozenset[str] | None = None
        self._lock = asyncio.Lock()

    def hear(self, project: str) -> bool:
        """Whether somebody may: before the first look nobody knows."""
        return self._projects is None or project in self._projects

    async def refresh(self) -> None:
        """One at a time: an older look must not take back what a newer one has seen."""
        async with self._lock:
            self._projects = await self._db.read(webhooks.heard)
