"""Forget what nobody will ask for again. Never a job."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from operator import itemgetter
from pathlib import Path

from sqlalchemy import Connection

from footplate.contract.bucket import RemoteStore
from footplate.contract.ids import CheckpointId, JobId
from footplate.contract.layout import attempt_folder, job_folder
from service.artifact_files import Store
from service.jobs.remove_folders import why_it_stays_there
from service.store import attempts, checkpoints, deliveries, events, idempotency, jobs, nodes
from service.store.rows import CheckpointRow, JobRow

DAY_MS = 24 * 3600 * 1000
KEYS_DAYS = 7
NODES_DAYS = 7
DEAD_EVENTS_DAYS = 30
DELIVERIES_DAYS = 30
DELETED_DAYS = 7
"""For so long the files of a deleted job are looked for: a worker that was frozen may write them once more."""
LATE_DAYS, LATE_FOR_DAYS = 1, 7
"""What a given-up attempt has written without anyone hearing of it stays so long, and is then looked for so long."""
TEMPORARY_SECONDS = 2 * 24 * 3600.0
"""No save takes as long: what is left of one belongs to nobody."""


def prune(conn: Connection, now: int) -> int:
    """How many rows went."""
    return (
        idempotency.prune(conn, now - KEYS_DAYS * DAY_MS)
        + nodes.prune(conn, now - NODES_DAYS * DAY_MS)
        + events.prune_dead(conn, now - DEAD_EVENTS_DAYS * DAY_MS)
        + deliveries.prune(conn, now - DELIVERIES_DAYS * DAY_MS)
        + jobs.prune_deleted(conn, now - DELETED_DAYS * DAY_MS)
    )


def prune_deleted(artifacts: Store, deleted: Iterable[JobId]) -> dict[JobId, str]:
    """Removes what a delete that was cut off, or a disk that was away, has left, and says why what stays does.

    A folder without rows is no proof: after a database was restored from a backup, it is all that there is of a job.
    """
    tried = {job: why_it_stays_there(artifacts, str(job_folder(job))) for job in deleted}
    return {job: why for job, why in tried.items() if why is not None}


def rotate(conn: Connection, job_id: JobId) -> None:
    """Marks what a job need not keep any more: all but its newest checkpoints and its best, over all of its attempts.

    Of the best, `keep_best` stay; an attempt that trains keeps so many of its own as well, until the next one.

    Only of attempts before the newest that has any: of its own, that one's training relies on the newest that it knows
    to be stored, and it may still be at work after it was given up. And only while nobody may have to continue from
    what he was offered; what another job has to start from stays as well.
    """
    rows = checkpoints.offers(conn, job_id)
    committed = [row for row in rows if row.status == checkpoints.COMMITTED]
    free = [row for row in rows if committed and _may_go(row, committed[0].attempt)]
    if not free:
        return
    job = jobs.lock(conn, job_id)
    limit = _limit(job) if job else None
    counted = [row for row in committed if not row.is_pinned]
    if job is None or limit is None or len(counted) < limit or not _is_past_resuming(conn, job, committed[0].attempt):
        return
    last = counted[limit - 1].no
    stay = _best(job, rows) | {one.id for one in checkpoints.held(conn, job_id)}
    gone = {row.id for row in free if row.no < last and row.id not in stay}
    paths = {row.path for row in rows if row.id in gone} - {row.path for row in rows if row.id not in gone}
    checkpoints.mark(conn, job_id, paths, checkpoints.DELETING)


def _may_go(row: CheckpointRow, newest: int) -> bool:
    """Pinned ones stay, beside as many as the limit says; of one that was pinned no training knows."""
    return not row.is_pinned and (row.attempt < newest or row.lies_aside)


def _limit(job: JobRow) -> int | None:
    """How many of the newest stay. None: all."""
    training = json.loads(job.spec)["training"]
    limit: int | None = training.get("keep_last") or training.get("save_total_limit")
    return limit


def _best(job: JobRow, rows: Sequence[CheckpointRow]) -> set[CheckpointId]:
    """The best one as training says, and so many more as the spec wants, by their scores: of equals the older ones."""
    training = json.loads(job.spec)["training"]
    scored = [
        (row.score, row.id) for row in reversed(rows) if row.score is not None and row.status == checkpoints.COMMITTED
    ]
    ranked = sorted(scored, key=itemgetter(0), reverse=bool(training.get("greater_is_better")))
    return {row.id for row in rows if row.is_best} | {one for _, one in ranked[: training.get("keep_best") or 0]}


def _is_past_resuming(conn: Connection, job: JobRow, newest: int) -> bool:
    """Nobody runs it, or all who do have begun, and the attempt has a checkpoint of its own."""
    if not job.state.holds_slots:
        return True
    parts = attempts.sources_of(conn, job.id, job.attempt)
    return newest == job.attempt and all(part.running_at is not None for part in parts)


def late_window(now: int) -> tuple[int, int]:
    """After what and until when an attempt was given up whose unheard checkpoints go now."""
    return now - (LATE_DAYS + LATE_FOR_DAYS) * DAY_MS, now - LATE_DAYS * DAY_MS


def prune_late(artifacts: Store, lost: Mapping[tuple[JobId, int], Collection[str]]) -> list[Path]:
    """Removes checkpoints that nobody can continue from: their attempt was given up before anyone had heard of them.

    By the attempt's end in SQL, and not by the folder's age: after a database was restored from a backup it has no row
    of what had been saved since, and those attempts are given up only then.
    """
    if isinstance(artifacts, RemoteStore):
        return _prune_late_there(artifacts, lost)
    root, gone = artifacts.resolve(), []
    for (job, attempt), known in lost.items():
        folder = root / attempt_folder(job, attempt)
        for late in folder.glob("checkpoint-*"):
            if str(late.relative_to(root)) not in known and late.resolve() == late and late.is_dir():
                shutil.rmtree(late, ignore_errors=True)
                gone.append(late)
    return gone


def _prune_late_there(store: RemoteStore, lost: Mapping[tuple[JobId, int], Collection[str]]) -> list[Path]:
    """And what was half uploaded: the node that was at it died."""
    gone = []
    for (job, attempt), known in lost.items():
        folder = str(attempt_folder(job, attempt))
        names = {found.path.partition("/")[0] for found in store.files(folder)}
        for late in sorted(f"{folder}/{name}" for name in names if name.startswith("checkpoint-")):
            if late not in known:
                store.remove(late)
                gone.append(Path(late))
    return gone


def prune_folders(artifacts: Store, older_than_seconds: float = TEMPORARY_SECONDS) -> list[Path]:
    """Removes what saves that died have left in attempts' folders: its names begin with a dot or end in .tmp."""
    if isinstance(artifacts, RemoteStore):
        # Saves are written on nodes, and come here when they stand.
        return []
    horizon = time.time() - older_than_seconds
    gone = []
    for attempt in artifacts.glob("jobs/*/attempts/*"):
        for folder in attempt.iterdir() if attempt.is_dir() else ():
            is_temporary = folder.name.startswith(".") or folder.name.endswith(".tmp")
            if is_temporary and folder.is_dir() and not folder.is_symlink() and folder.stat().st_mtime < horizon:
                shutil.rmtree(folder, ignore_errors=True)
                gone.append(folder)
    return gone
