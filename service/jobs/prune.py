"""Forget what nobody will ask for again. Never a job."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterable
from pathlib import Path

from sqlalchemy import Connection

from contract.ids import JobId
from contract.layout import PROBE, job_folder
from service.store import attempts, checkpoints, events, idempotency, jobs, nodes
from service.store.rows import JobRow

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


def rotate(conn: Connection, job_id: JobId) -> None:
    """Marks what a job need not keep any more: all but its newest checkpoints and its best, over all of its attempts.

    Only of attempts before the newest that has any: of its own, that one's training relies on the newest that it knows
    to be stored, and it may still be at work after it was given up. And only while nobody may have to continue from
    what he was offered.
    """
    rows = checkpoints.offers(conn, job_id)
    committed = [row for row in rows if row.status == checkpoints.COMMITTED]
    if not committed or rows[-1].attempt == committed[0].attempt:
        return
    job = jobs.lock(conn, job_id)
    limit = _limit(job) if job else None
    if job is None or limit is None or len(committed) < limit or not _is_past_resuming(conn, job, committed[0].attempt):
        return
    last = committed[limit - 1].no
    gone = {row.id for row in rows if row.no < last and row.attempt < committed[0].attempt and not row.is_best}
    paths = {row.path for row in rows if row.id in gone} - {row.path for row in rows if row.id not in gone}
    checkpoints.mark(conn, job_id, paths, checkpoints.DELETING)


def _limit(job: JobRow) -> int | None:
    """How many of the newest stay. None: all; or several of the best too, and which they are only training knows."""
    training = json.loads(job.spec)["training"]
    if training.get("keep_best") is not None:
        return None
    limit: int | None = training.get("keep_last") or training.get("save_total_limit")
    return limit


def _is_past_resuming(conn: Connection, job: JobRow, newest: int) -> bool:
    """Nobody runs it, or all who do have begun, and the attempt has a checkpoint of its own."""
    if not job.state.holds_slots:
        return True
    parts = attempts.sources_of(conn, job.id, job.attempt)
    return newest == job.attempt and all(part.running_at is not None for part in parts)


def remove_checkpoints(artifacts: Path, going: Iterable[tuple[JobId, str]]) -> list[tuple[JobId, str]]:
    """Those whose folders are not there any more. Where the store itself is not, that says nothing."""
    if not (artifacts / PROBE).exists():
        return []
    root = artifacts.resolve()
    return [(job, path) for job, path in going if _is_removed(root / path)]


def _is_removed(folder: Path) -> bool:
    if folder.resolve() != folder:
        # A link on the way there: training may have put it, and what it leads to is not ours.
        return True
    shutil.rmtree(folder, ignore_errors=True)
    return not folder.exists()


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
