"""Copies of rows of SQL in the memory of each API process: the nodes' catalogues, and the projects with a webhook.

The keys are such a cache, too (keyring.py). Each cache is read again at an interval. While SQL is unreachable, the
caches keep their content.
"""

from __future__ import annotations

import asyncio
import json
import logging
from abc import ABC, abstractmethod

from footplate.contract.components import GROUPS, Catalogue, Described
from footplate.contract.errors import FootplateError
from footplate.contract.messages import FileRoots
from footplate.contract.repeated_errors import ErrorLog
from service.end_tasks import end_tasks
from service.jobs.installed import read_catalogue
from service.store import nodes, webhooks
from service.store.database import Database

log = logging.getLogger("footplate.api")

CATALOGUE_SECONDS = 2.0
"""The interval of reads of catalogues. If a job is accepted by an outdated catalogue, its node reports the error."""
FIRST_CATALOGUE_SECONDS = 0.1
"""The interval until a node announces a catalogue. Until then, a POST accepts any component's name."""


class Poller(ABC):
    """Reads SQL at an interval: the caches, and the spans of attempts that have ended (spans.py)."""

    seconds: float
    """The seconds between two reads of SQL, and so the greatest age of cached rows."""

    def __init__(self, db: Database) -> None:
        self._db = db
        self._task: asyncio.Task[None] | None = None
        self._lock = asyncio.Lock()
        self._failures = ErrorLog(log, type(self).__name__)

    @abstractmethod
    async def _read(self) -> None:
        """Reads SQL, and replaces the values of the read before."""

    async def refresh(self) -> None:
        """Reads SQL now. Only one read runs at a time, so that a slow read cannot replace the result of a later one."""
        async with self._lock:
            await self._read()

    async def start(self) -> None:
        await self._try()
        self._task = asyncio.create_task(self._poll())

    async def close(self) -> None:
        if self._task is not None:
            await end_tasks(self._task)

    async def _poll(self) -> None:
        while True:
            await asyncio.sleep(self.seconds)
            await self._try()

    async def _try(self) -> None:
        try:
            await self.refresh()
        except FootplateError:
            pass  # SQL is unreachable, which the requests that need SQL report.
        except Exception as error:
            self._failures.failed("cannot be updated: %r", error, trace=True)
        else:
            self._failures.went_well()


class Catalogues(Poller):
    """The catalogues of all connected nodes. A component's name is accepted if any node has the component."""

    seconds = FIRST_CATALOGUE_SECONDS

    def __init__(self, db: Database) -> None:
        super().__init__(db)
        self._bodies_json = ""
        self.current: Catalogue | None = None
        """The union of all catalogues. None: no node has announced a catalogue, so any component's name is accepted."""
        self.announced: list[Catalogue] = []
        """The different catalogues that nodes have announced, with packages and names of secrets."""
        self.roots: list[FileRoots | None] = []
        """The folders in which each node looks for files. None: the node does not announce them."""

    async def _read(self) -> None:
        bodies, roots = await self._db.read(lambda conn: (nodes.catalogues(conn), nodes.file_roots(conn)))
        self.roots = [None if text is None else FileRoots.model_validate_json(text) for text in roots]
        bodies_json = json.dumps(bodies, sort_keys=True)
        if bodies_json != self._bodies_json:
            self.announced = [catalogue for body in bodies if (catalogue := read_catalogue(body)) is not None]
            self._bodies_json, self.current = bodies_json, _union(self.announced)
            self.seconds = CATALOGUE_SECONDS if self.announced else FIRST_CATALOGUE_SECONDS


def _union(catalogues: list[Catalogue]) -> Catalogue | None:
    components: dict[tuple[str, str], Described] = {}
    for catalogue in catalogues:
        for group in GROUPS:
            for name in catalogue.known(group):
                component, known_component = catalogue.get(group, name), components.get((group, name))
                if component and (known_component is None or (known_component.needs and not component.needs)):
                    components[group, name] = component
    return Catalogue.of(components.values()) if catalogues else None


class WebhookProjects(Poller):
    """The projects that have an enabled webhook. POST /jobs reads webhooks only for these projects.

    A new webhook may miss jobs that are submitted to another API process within the next second. Later changes of a
    job's state do not use this cache, and are always delivered.
    """

    seconds = 0.5
    _projects: frozenset[str] | None = None

    def may_have_webhook(self, project: str) -> bool:
        """Returns True if the project has a webhook, or if the projects have not been read yet."""
        return self._projects is None or project in self._projects

    async def _read(self) -> None:
        self._projects = await self._db.read(webhooks.projects_with_webhook)
