"""What need not be kept any more goes: rotated checkpoints, the files of deleted jobs, what the dead have left.

Control has one; SQL says what may go. First the files, then the row says so: who dies in between does it again.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Any

from footplate.contract import layout
from footplate.contract.bucket import RemoteStore
from footplate.contract.crash_points import Moment, reached
from footplate.contract.ids import CheckpointId, uuid7
from service.artifact_files import Store
from service.jobs.pins import prune_pins
from service.jobs.prune import late_window, prune, prune_deleted, prune_folders, prune_late
from service.jobs.remove_folders import Remover
from service.store import attempts, checkpoints, jobs
from service.store.database import Database, Write
from service.store.rows import CheckpointRow
from service.store.times import now_ms

log = logging.getLogger("footplate.control")

Ask = Callable[[Write[Any]], Awaitable[Any]]


class Upkeep:
    """Of one artifact store, and of SQL, which is written by `write`."""

    def __init__(self, db: Database, write: Ask, artifacts: Store) -> None:
        self._db, self._write, self._artifacts = db, write, artifacts
        self._remover = Remover()
        self.stuck = 0
        """Checkpoints that are to go and cannot be removed."""

    async def rotate(self) -> None:
        """What jobs need not keep."""
        going = await self._db.read(checkpoints.deleting)
        if going:
            removed = await asyncio.to_thread(self._remover.remove, self._artifacts, going, time.monotonic())
            reached(Moment.AFTER_CHECKPOINTS_REMOVED)
            if removed:
                await self._write(lambda conn: checkpoints.mark_deleted(conn, removed))
        self.stuck = self._remover.stuck if going else 0

    async def prune(self) -> None:
        """What nobody can need: once in a while."""
        artifacts, now = self._artifacts, now_ms()
        await asyncio.to_thread(write_probe, artifacts)
        await self._write(lambda conn: prune(conn, now))
        stay = await asyncio.to_thread(prune_deleted, artifacts, await self._db.read(jobs.deleted))
        for job, why in stay.items():
            log.warning("the files of %s, which was deleted, cannot be removed: %s; it is tried again", job, why)
        lost = await self._db.read(lambda conn: attempts.lost_between(conn, *late_window(now)))
        late = await asyncio.to_thread(prune_late, artifacts, lost)
        if late:
            log.info("removed %d checkpoints of given-up attempts that nobody had heard of: %s …", len(late), late[0])
        await asyncio.to_thread(prune_folders, artifacts)
        await asyncio.to_thread(prune_pins, artifacts, self._checkpoint)

    def _checkpoint(self, checkpoint: CheckpointId) -> CheckpointRow | None:
        return self._db.read_now(lambda conn: checkpoints.find(conn, checkpoint))


def write_probe(artifacts: Store) -> None:
    """What a node must be able to read, to know that it sees the same files."""
    if isinstance(artifacts, RemoteStore):
        if not artifacts.has(layout.PROBE):
            artifacts.write(f"footplate {uuid7()}\n".encode(), layout.PROBE)
        return
    artifacts.mkdir(parents=True, exist_ok=True)
    probe = artifacts / layout.PROBE
    if not probe.exists():
        probe.write_text(f"footplate {uuid7()}\n")
