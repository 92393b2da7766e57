"""Forget what nobody will ask for again. Never a job."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterable
from pathlib import Path

from sqlalchemy import Connection

from contract.ids import JobId
from contract.layout import job_folder
from service.store import events, idempotency, jobs, nodes

DAY_MS = 24 * 3600 * 1000
KEYS_DAYS = 7
NODES_DAYS = 7
DEAD_EVENTS_DAYS = 30
DELETED_DAYS = 7
"""For so long the files of a deleted job are looked for: a worker that was frozen may write them once more."""
TEMPORARY_SECONDS = 2 * 24 * 3600.0
"""No save takes as long: what is left of one belongs to nobody."""


def prune(conn: Connection, now: int) -> int:
    """How many rows went."""
    return (
        idempotency.prune(conn, now - KEYS_DAYS * DAY_MS)
        + nodes.prune(conn, now - NODES_DAYS * DAY_MS)
        + events.prune_dead(conn, now - DEAD_EVENTS_DAYS * DAY_MS)
        + jobs.prune_deleted(conn, now - DELETED_DAYS * DAY_MS)
    )


def prune_deleted(artifacts: Path, deleted: Iterable[JobId]) -> None:
    """Removes what a delete that was cut off, or a disk that was away, has left. A folder without rows is no proof.

    After a database was restored from a backup, such a folder is all that there is of a job.
    """
    for job in deleted:
        shutil.rmtree(artifacts / job_folder(job), ignore_errors=True)


def prune_folders(artifacts: Path, older_than_seconds: float = TEMPORARY_SECONDS) -> list[Path]:
    """Removes what saves that died have left in attempts' folders: its names begin with a dot or end in .tmp."""
    horizon = time.time() - older_than_seconds
    gone = []
    for attempt in artifacts.glob("jobs/*/attempts/*"):
        for folder in attempt.iterdir() if attempt.is_dir() else ():
            is_temporary = folder.name.startswith(".") or folder.name.endswith(".tmp")
            if is_temporary and folder.is_dir() and not folder.is_symlink() and folder.stat().st_mtime < horizon:
                shutil.rmtree(folder, ignore_errors=True)
                gone.append(folder)
    return gone
