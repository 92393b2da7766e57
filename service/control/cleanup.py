"""Removes files and rows that are not needed any more.

SQL says what may be deleted. Files are deleted first, and their rows are marked as deleted afterwards. After a crash
between the two steps, the next run repeats both.
"""

from __future__ import annotations

import logging

from footplate.contract import layout
from footplate.contract.bucket import RemoteStore
from footplate.contract.ids import uuid7
from service.artifact_files import Store
from service.control.control_state import ControlState
from service.jobs.pins import prune_pins
from service.jobs.prune import DAY_MS, late_window, prune_deleted, prune_folders, prune_late
from service.jobs.prune import prune as prune_rows
from service.jobs.remove_folders import delete_folder
from service.store import attempts, checkpoints, jobs, uploads

log = logging.getLogger("footplate.control")


async def rotate(state: ControlState) -> None:
    """Removes the folders of checkpoints that their jobs need not keep."""
    io, remover = state.io, state.io.remover
    unneeded_checkpoints = await state.db.read(checkpoints.deleting)
    if unneeded_checkpoints:
        removed_checkpoints = await io.in_thread(remover.remove, state.settings.store, unneeded_checkpoints, io.clock())
        if removed_checkpoints:
            await state.write(checkpoints.mark_deleted, removed_checkpoints)
    state.counts.checkpoints_stuck = remover.stuck if unneeded_checkpoints else 0


async def prune(state: ControlState) -> None:
    """Removes old rows, the files of deleted jobs, and the leftovers of lost attempts."""
    artifacts, now, in_thread = state.settings.store, state.io.now_ms(), state.io.in_thread
    await in_thread(write_probe, artifacts)
    await state.write(prune_rows, now)
    errors = await in_thread(prune_deleted, artifacts, await state.db.read(jobs.deleted))
    for job, error in errors.items():
        log.warning("the files of the deleted job %s cannot be removed: %s; control tries again", job, error)
    lost_attempts = await state.db.read(attempts.lost_between, *late_window(now))
    late_paths = await in_thread(prune_late, artifacts, lost_attempts)
    if late_paths:
        text = "removed %d checkpoints that lost attempts had saved and not reported. The first is %s"
        log.info(text, len(late_paths), late_paths[0])
    await in_thread(prune_folders, artifacts)
    old_uploads = await state.db.read(uploads.older_than, now - DAY_MS)
    removed_uploads = [
        upload
        for upload in old_uploads
        if await in_thread(delete_folder, artifacts, str(layout.parts_folder(upload))) is None
    ]
    if removed_uploads:
        await state.write(uploads.forget, removed_uploads)
    await in_thread(prune_pins, artifacts, lambda checkpoint: state.db.read_now(checkpoints.find, checkpoint))


def write_probe(artifacts: Store) -> None:
    """Writes the probe, a small file. A node that can read it sees the same artifact store as the service."""
    if isinstance(artifacts, RemoteStore):
        if not artifacts.has(layout.PROBE):
            artifacts.write(f"footplate {uuid7()}\n".encode(), layout.PROBE)
        return
    artifacts.mkdir(parents=True, exist_ok=True)
    probe = artifacts / layout.PROBE
    if not probe.exists():
        probe.write_text(f"footplate {uuid7()}\n")
