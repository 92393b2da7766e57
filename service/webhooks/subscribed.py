"""The projects that have a webhook, in memory, so that POST /jobs reads SQL only for these projects.

The projects are read twice a second. So a webhook that another API process has made may miss jobs that are submitted
here within the next second. Later moves of jobs do not use this cache, and are always delivered.
"""

from __future__ import annotations

import asyncio

from service.cache import PolledCache
from service.store import webhooks
from service.store.database import Database


class WebhookProjects(PolledCache):
    SECONDS = 0.5

    def __init__(self, db: Database) -> None:
        super().__init__()
        self._db = db
        self._projects: frozenset[str] | None = None
        self._lock = asyncio.Lock()

    def may_listen(self, project: str) -> bool:
        """Returns True if the project has a webhook, or if the projects have not been read yet."""
        return self._projects is None or project in self._projects

    async def refresh(self) -> None:
        """Reads the projects. The lock keeps a slow, older read from replacing the result of a newer one."""
        async with self._lock:
            self._projects = await self._db.read(webhooks.heard)
