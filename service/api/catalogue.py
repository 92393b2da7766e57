"""What the nodes that are here can build, at hand without asking SQL at every POST."""

from __future__ import annotations

import json

from footplate.contract.components import GROUPS, Catalogue, Described
from footplate.contract.messages import FileRoots
from service.cache import Fresh
from service.store import nodes
from service.store.database import Database


class Catalogues(Fresh):
    """The union of all nodes' catalogues: a name is good when any of them has it."""

    SECONDS = 2.0
    """Claims check again, so that a stale one costs an attempt at worst."""
    FIRST_SECONDS = 0.1
    """Without any, a POST accepts what it cannot check: the first catalogue is waited for."""

    def __init__(self, db: Database) -> None:
        super().__init__()
        self._db = db
        self._seen = ""
        self.current: Catalogue | None = None
        """None: no node has told yet, so anything is accepted and checked at claim."""
        self.told: list[Catalogue] = []
        """Each of them, with the packages and secrets that its nodes have."""
        self.roots: list[FileRoots | None] = []
        """Where each node looks for files. None: it does not announce that."""

    @property
    def seconds(self) -> float:
        return self.SECONDS if self.told else self.FIRST_SECONDS

    async def refresh(self) -> None:
        found, roots = await self._db.read(lambda conn: (nodes.catalogues(conn), nodes.file_roots(conn)))
        self.roots = [None if text is None else FileRoots.model_validate_json(text) for text in roots]
        seen = json.dumps(found, sort_keys=True)
        if seen != self._seen:
            self.told = [Catalogue.model_validate(one) for one in found]
            self._seen, self.current = seen, _union(self.told)


def _union(catalogues: list[Catalogue]) -> Catalogue | None:
    described: dict[tuple[str, str], Described] = {}
    for catalogue in catalogues:
        for group in GROUPS:
            for name in catalogue.known(group):
                found, known = catalogue.get(group, name), described.get((group, name))
                if found and (known is None or (known.needs and not found.needs)):
                    described[group, name] = found
    return Catalogue.of(described.values()) if catalogues else None
