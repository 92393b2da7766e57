"""Forget what nobody will ask for again. Never a job."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

from sqlalchemy import Connection

from service.store import events, idempotency, nodes

DAY_MS = 24 * 3600 * 1000
KEYS_DAYS = 7
NODES_DAYS = 7
DEAD_EVENTS_DAYS = 30
TEMPORARY_SECONDS = 2 * 24 * 3600.0
"""No save takes as long: what is left of one belongs to nobody."""


def prune(conn: Connection, now: int) -> int:
    """How many rows went."""
    return (
        idempotency.prune(conn, now - KEYS_DAYS * DAY_MS)
        + nodes.prune(conn, now - NODES_DAYS * DAY_MS)
        + events.prune_dead(conn, now - DEAD_EVENTS_DAYS * DAY_MS)
    )


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
