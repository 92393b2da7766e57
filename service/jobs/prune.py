"""Deletes rows and files that are no longer needed. A job is never deleted here."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from operator import itemgetter

from sqlalchemy import Connection

from footplate.contract.bucket import RemoteStore
from footplate.contract.ids import CheckpointId, JobId
from footplate.contract.layout import attempt_folder, job_folder
from service.artifact_files import Store
from service.jobs.remove_folders import delete_folder
from service.store import attempts, checkpoints, deliveries, events, idempotency, jobs, nodes
from service.store.row_types import CheckpointRow, JobRow
from service.store.stored_spec import StoredTraining, read_spec

DAY_MS = 24 * 3600 * 1000
KEYS_DAYS = 7
NODES_DAYS = 7
DEAD_EVENTS_DAYS = 30
DELIVERIES_DAYS = 30
DELETED_DAYS = 7
"""The days in which a deleted job's files are looked for, because a worker that was frozen may write them again."""
LATE_DAYS, LATE_FOR_DAYS = 1, 7
"""The days that unreported checkpoints of a lost attempt stay, and the days after that in which they are deleted."""
TEMPORARY = (".tmp-checkpoint-", ".old-checkpoint-")
"""The beginnings of the names that a save gives to folders. A script may have other hidden folders, which stay."""
TEMPORARY_SECONDS = 2 * 24 * 3600.0
"""The age from which temporary files of a save count as left behind, because no save takes as long."""


def prune(conn: Connection, now: int) -> None:
    """Deletes rows of each kind that are older than the constants above allow."""
    idempotency.prune(conn, now - KEYS_DAYS * DAY_MS)
    nodes.prune(conn, now - NODES_DAYS * DAY_MS)
    events.prune_dead(conn, now - DEAD_EVENTS_DAYS * DAY_MS)
    deliveries.prune(conn, now - DELIVERIES_DAYS * DAY_MS)
    jobs.prune_deleted(conn, now - DELETED_DAYS * DAY_MS)


def prune_deleted(artifacts: Store, job_ids: Iterable[JobId]) -> dict[JobId, str]:
    """Deletes folders of deleted jobs that still exist. Returns the reason for each job whose folder stays.

    Only jobs in `job_ids` count. A folder without rows may be all that is left of a job after a restore from a backup.
    """
    refusals = {job: delete_folder(artifacts, str(job_folder(job))) for job in job_ids}
    return {job: why for job, why in refusals.items() if why is not None}


def rotate(conn: Connection, job_id: JobId) -> None:
    """Marks a job's old checkpoints for deletion, over all of its attempts.

    These checkpoints stay:

    - the newest ones, as many as `keep_last` or `save_total_limit` says, or all if neither is set
    - the one that training marked as best, and the `keep_best` best ones by score
    - pinned checkpoints, and checkpoints from which other jobs start
    - checkpoints of the newest attempt that has any, because its training may still run and rely on them

    Nothing is marked while an attempt may still load a checkpoint to continue from.
    """
    rows = checkpoints.offers(conn, job_id)
    committed = checkpoints.committed(rows)
    removable_rows = [row for row in rows if committed and _may_go(row, committed[0].attempt)]
    if not removable_rows:
        return
    job = jobs.lock(conn, job_id)
    training: StoredTraining = read_spec(job.spec)["training"] if job else {}
    limit = training.get("keep_last") or training.get("save_total_limit")
    counted_rows = [row for row in committed if not row.is_pinned]
    if job is None or limit is None or len(counted_rows) < limit:
        return
    if not _is_past_resuming(conn, job, committed[0].attempt):
        return
    oldest_no = counted_rows[limit - 1].no
    kept_ids = _best(training, rows) | {checkpoint.id for checkpoint in checkpoints.held(conn, job_id)}
    old_ids = {row.id for row in removable_rows if row.no < oldest_no and row.id not in kept_ids}
    paths = {row.path for row in rows if row.id in old_ids} - {row.path for row in rows if row.id not in old_ids}
    checkpoints.mark(conn, job_id, paths, checkpoints.DELETING)


def _may_go(row: CheckpointRow, newest_attempt: int) -> bool:
    """Returns True if `rotate` may delete the checkpoint. A pinned checkpoint stays.

    `newest_attempt` is the newest attempt with checkpoints. Its checkpoints stay, except those that were pinned before,
    because training does not rely on files in the pinned folder.
    """
    return not row.is_pinned and (row.attempt < newest_attempt or row.is_in_pinned_folder)


def _best(training: StoredTraining, rows: Sequence[CheckpointRow]) -> set[CheckpointId]:
    """Returns the checkpoint that training marked as best, and the `keep_best` best ones by score.

    If scores are equal, the older checkpoint counts as better.
    """
    scores = [(row.score, row.id) for row in reversed(checkpoints.committed(rows)) if row.score is not None]
    best_first = sorted(scores, key=itemgetter(0), reverse=bool(training.get("greater_is_better")))
    best_ids = {checkpoint for _, checkpoint in best_first[: training.get("keep_best") or 0]}
    return best_ids | {row.id for row in rows if row.is_best}


def _is_past_resuming(conn: Connection, job: JobRow, newest_attempt: int) -> bool:
    """Returns True if no attempt may still load an older checkpoint to continue from.

    That is so if no attempt runs, or if all nodes of the running attempt train and it has saved a checkpoint.
    """
    if not job.state.holds_slots:
        return True
    sources = attempts.sources_of(conn, job.id, job.attempt)
    return newest_attempt == job.attempt and all(source.running_at is not None for source in sources)


def late_window(now: int) -> tuple[int, int]:
    """Returns the period, in ms, in which an attempt must have been lost for `prune_late` to search its folder now."""
    return now - (LATE_DAYS + LATE_FOR_DAYS) * DAY_MS, now - LATE_DAYS * DAY_MS


def prune_late(store: Store, lost_attempts: Mapping[tuple[JobId, int], Collection[str]]) -> list[str]:
    """Deletes checkpoints that lost attempts saved but did not report. No job can continue from such a checkpoint.

    `lost_attempts` has the attempts that ended some days ago by their time in SQL. The age of a folder must not decide.
    After a restore from a backup, SQL has no rows of checkpoints that are newer than the backup, although their folders
    are old. Their attempts count as lost only from the restore on.
    """
    removed_paths = []
    for (job, attempt), known_paths in lost_attempts.items():
        for path in _checkpoint_folders(store, str(attempt_folder(job, attempt))):
            if path not in known_paths and delete_folder(store, path) is None:
                removed_paths.append(path)
    return removed_paths


def _checkpoint_folders(store: Store, folder: str) -> list[str]:
    """Returns the checkpoint folders of an attempt. A bucket may also have incomplete uploads of nodes that died."""
    if isinstance(store, RemoteStore):
        names = {file.path.partition("/")[0] for file in store.files(folder)}
    else:
        names = {path.name for path in (store / folder).glob("*") if path.is_dir() and not path.is_symlink()}
    return sorted(f"{folder}/{name}" for name in names if name.startswith("checkpoint-"))


def prune_folders(artifacts: Store) -> None:
    """Deletes temporary folders that interrupted saves have left. No link is followed."""
    if isinstance(artifacts, RemoteStore):
        # A bucket has no temporary folders, because nodes upload only complete checkpoints.
        return
    horizon = time.time() - TEMPORARY_SECONDS
    for folder in [path for name in TEMPORARY for path in artifacts.glob(f"jobs/*/attempts/*/{name}*")]:
        # A save that ends meanwhile renames its folder.
        with suppress(FileNotFoundError):
            if folder.lstat().st_mtime < horizon:
                delete_folder(artifacts, str(folder.relative_to(artifacts)))
