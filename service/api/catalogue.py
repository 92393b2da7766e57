"""The components of all connected nodes, in memory, so that a POST need not read them from SQL."""

from __future__ import annotations

import json

from footplate.contract.components import GROUPS, Catalogue, Described
from footplate.contract.messages import FileRoots
from service.cache import PolledCache
from service.store import nodes
from service.store.database import Database


class Catalogues(PolledCache):
    """The catalogues of all connected nodes. A name is accepted if any node has it."""

    SECONDS = 2.0
    """The interval of refreshes. An outdated catalogue costs an attempt at most, because claims check specs again."""
    FIRST_SECONDS = 0.1
    """The interval until the first catalogue. It is short, because without a catalogue a POST accepts any name."""

    def __init__(self, db: Database) -> None:
        super().__init__()
        self._db = db
        self._seen = ""
        self.current: Catalogue | None = None
        """The union of all. None: no node has announced one, so any name is accepted and is checked at claim."""
        self.announced: list[Catalogue] = []
        """The different catalogues, with the packages and secrets of their nodes."""
        self.roots: list[FileRoots | None] = []
        """The folders in which each node looks for files. None: the node does not announce them."""

    @property
    def seconds(self) -> float:
        return self.SECONDS if self.announced else self.FIRST_SECONDS

    async def refresh(self) -> None:
        bodies, roots = await self._db.read(lambda conn: (nodes.catalogues(conn), nodes.file_roots(conn)))
        self.roots = [None if text is None else FileRoots.model_validate_json(text) for text in roots]
        seen = json.dumps(bodies, sort_keys=True)
        if seen != self._seen:
            self.announced = [Catalogue.model_validate(body) for body in bodies]
            self._seen, self.current = seen, _union(self.announced)


def _union(catalogues: list[Catalogue]) -> Catalogue | None:
    described: dict[tuple[str, str], Described] = {}
    for catalogue in catalogues:
        for group in GROUPS:
            for name in catalogue.known(group):
                component, other = catalogue.get(group, name), described.get((group, name))
                if component and (other is None or (other.needs and not component.needs)):
                    described[group, name] = component
    return Catalogue.of(described.values()) if catalogues else None
