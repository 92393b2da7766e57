"""What the nodes that are here can build, at hand without asking SQL at every POST."""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress

from contract.components import GROUPS, Catalogue, Described
from contract.errors import FootplateError
from service.store import nodes
from service.store.database import Database

REFRESH_SECONDS = 2.0
"""How stale it may be. Claims check again, so that a stale one costs an attempt at worst."""


class Catalogues:
    """The union of all nodes' catalogues: a name is good when any of them has it."""

    def __init__(self, db: Database) -> None:
        self._db = db
        self._task: asyncio.Task[None] | None = None
        self._seen = ""
        self.current: Catalogue | None = None
        """None: no node has told yet, so anything is accepted and checked at claim."""
        self.told: list[Catalogue] = []
        """Each of them, with the packages and secrets that its nodes have."""

    async def start(self) -> None:
        with suppress(FootplateError):
            await self.refresh()
        self._task = asyncio.create_task(self._keep_fresh())

    async def refresh(self) -> None:
        found = await self._db.read(nodes.catalogues)
        seen = json.dumps(found, sort_keys=True)
        if seen != self._seen:
            self.told = [Catalogue.model_validate(one) for one in found]
            self._seen, self.current = seen, _union(self.told)

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _keep_fresh(self) -> None:
        while True:
            await asyncio.sleep(REFRESH_SECONDS)
            # SQL that is away says so to whoever needs it; names that were good stay good.
            with suppress(FootplateError):
                await self.refresh()


def _union(catalogues: list[Catalogue]) -> Catalogue | None:
    described: dict[tuple[str, str], Described] = {}
    for catalogue in catalogues:
        for group in GROUPS:
            for name in catalogue.known(group):
                found, known = catalogue.get(group, name), described.get((group, name))
                if found and (known is None or (known.needs and not found.needs)):
                    described[group, name] = found
    return Catalogue.of(described.values()) if catalogues else None
