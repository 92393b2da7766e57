"""Operations of users on a job's checkpoints: find, pin, unpin and delete one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from sqlalchemy import Connection

from footplate.contract.errors import FootplateError, NotFound
from footplate.contract.events import Kind
from footplate.contract.ids import JobId
from service.jobs import start_checkpoint
from service.jobs.prune import rotate
from service.store import checkpoints, events, jobs
from service.store.checkpoints import BEST, COMMITTED, CORRUPT, DELETING, GONE, LATEST
from service.store.row_types import CheckpointRow, JobRow


class CheckpointNeeded(FootplateError):
    code = "checkpoint_needed"
    status = 409
    title = "The checkpoint is needed"


class CheckpointPinned(FootplateError):
    code = "checkpoint_pinned"
    status = 409
    title = "The checkpoint is pinned"


class CheckpointNotThere(FootplateError):
    code = "checkpoint_gone"
    status = 409
    title = "The checkpoint was deleted or is corrupt"


@dataclass(frozen=True, slots=True)
class CheckpointDeletion:
    row: CheckpointRow
    frees_bytes: int
    """The bytes that this deletion frees. 0 if an earlier request has deleted the checkpoint."""


def look(conn: Connection, project: str, job_id: JobId, name: str) -> CheckpointRow:
    """Returns a job's checkpoint. Raises NotFound.

    `name` is an id, or `latest` or `best` for the newest or best committed checkpoint.
    """
    job = jobs.get(conn, project, job_id)
    return _named(checkpoints.of_job(conn, job_id), job, name)


def drop(
    conn: Connection, project: str, job_id: JobId, name: str, now: int, *, by: str | None = None
) -> CheckpointDeletion:
    """Marks a checkpoint for deletion. Control deletes its folder later, and a repeated call changes nothing.

    Raises NotFound, CheckpointPinned, CheckpointInUse if another job starts from the checkpoint, and CheckpointNeeded
    if this job may still continue from the checkpoint.
    """
    job = jobs.lock_for_user(conn, project, job_id)
    rows = checkpoints.of_job(conn, job_id)
    row = _named(rows, job, name)
    if row.status in GONE:
        return CheckpointDeletion(row, 0)
    if row.is_pinned:
        raise CheckpointPinned(
            f"checkpoint {row.id} is pinned and cannot be deleted", hint='PATCH it with {"pinned": false} first'
        )
    start_checkpoint.require_unheld(conn, job_id, row.id)
    _refuse_what_is_needed(job, rows, row)
    # If an attempt saved a step twice, two rows have the same folder, and the newer row has its size.
    freed_bytes = next(other_row for other_row in rows if other_row.path == row.path).bytes
    checkpoints.mark(conn, job_id, [row.path], DELETING)
    text = f"checkpoint {row.id}, of step {row.step}, was deleted and frees {freed_bytes:,} bytes"
    events.append(conn, job_id, Kind.NOTE, {"message": text, "checkpoint": row.id}, now, by=by)
    return CheckpointDeletion(replace(row, status=DELETING), freed_bytes)


def _refuse_what_is_needed(job: JobRow, rows: Sequence[CheckpointRow], row: CheckpointRow) -> None:
    if job.state.is_terminal:
        return
    # The last checkpoint stays even if it is corrupt, because the job would otherwise look like one that saved none.
    usable_statuses = (COMMITTED,) if row.status == COMMITTED else (COMMITTED, CORRUPT)
    alternatives = [
        other_row for other_row in rows if other_row.status in usable_statuses and other_row.path != row.path
    ]
    if not alternatives:
        raise CheckpointNeeded(
            f"checkpoint {row.id} cannot be deleted: job {job.id}, which is {job.state}, can continue from no other",
            hint="cancel the job, or wait until it has saved another checkpoint",
        )
    newest_row = next((other_row for other_row in rows if other_row.status == COMMITTED), None)
    if (
        job.state.holds_slots
        and newest_row is not None
        and newest_row.attempt == job.attempt
        and newest_row.path == row.path
    ):
        # Training may have deleted the older checkpoints already, although the event about that has not arrived yet.
        raise CheckpointNeeded(
            f"checkpoint {row.id} cannot be deleted: it is the newest, from which the next attempt continues",
            hint="wait until the job has saved another checkpoint, or pause the job",
        )


def pin(
    conn: Connection, project: str, job_id: JobId, name: str, path: str, has_links: Callable[[], bool], now: int, *,
    by: str | None = None,
) -> None:  # fmt: skip
    """Pins a checkpoint by changing its path to `path`, a folder that `link_pinned` has made and no rotation deletes.

    Does nothing if the folder has no links any more, because another request has unpinned the checkpoint meanwhile.
    Raises CheckpointNotThere if the checkpoint is not committed, for example because it was deleted meanwhile.
    """
    job = jobs.lock_for_user(conn, project, job_id)
    row = require_committed(_named(checkpoints.of_job(conn, job_id), job, name))
    if row.is_pinned or not has_links():
        return
    checkpoints.change(conn, row.id, path=path, pinned_from=row.path)
    _add_note(conn, row, "pinned: it stays even if the job keeps few checkpoints", by, now)


def unpin(
    conn: Connection, project: str, job_id: JobId, name: str, back: str | None, now: int, *, by: str | None = None
) -> CheckpointRow:
    """Unpins a checkpoint, so that it may be deleted when newer ones are saved.

    `back` is the path that the checkpoint had before it was pinned, if its files are still there.
    """
    job = jobs.lock_for_user(conn, project, job_id)
    row = _named(checkpoints.of_job(conn, job_id), job, name)
    if not row.is_pinned:
        return row
    path = back if back is not None and back == row.pinned_from else row.path
    checkpoints.change(conn, row.id, path=path, pinned_from=None)
    _add_note(conn, row, "no longer pinned: it may be deleted when newer ones are saved", by, now)
    rotate(conn, job_id)
    return next(pinned_row for pinned_row in checkpoints.of_job(conn, job_id) if pinned_row.id == row.id)


def remove_links(conn: Connection, row: CheckpointRow, remove: Callable[[CheckpointRow], None]) -> None:
    """Deletes the links of a checkpoint that is not pinned. The job is locked meanwhile, so no request can pin it."""
    jobs.lock(conn, JobId(row.job_id))
    present_row = checkpoints.find(conn, row.id)
    if present_row is not None and not present_row.is_pinned and not present_row.is_in_pinned_folder:
        remove(present_row)


def require_committed(row: CheckpointRow) -> CheckpointRow:
    if row.status != COMMITTED:
        raise CheckpointNotThere(
            f"checkpoint {row.id}, of step {row.step}, is {row.status} and cannot be pinned",
            hint="GET …/checkpoints lists the checkpoints with their status: pin a committed one",
        )
    return row


def _named(rows: Sequence[CheckpointRow], job: JobRow, name: str) -> CheckpointRow:
    choices = checkpoints.committed(rows) if name in (LATEST, BEST) else rows
    row = checkpoints.named(choices, name)
    if row is not None:
        return row
    _, why = start_checkpoint.why_not(rows, choices, job, name[:80])
    raise NotFound(why, hint=f"GET /jobs/{job.id}/checkpoints lists them; 'latest' and 'best' are names, too")


def _add_note(conn: Connection, row: CheckpointRow, change: str, by: str | None, now: int) -> None:
    data = {"message": f"checkpoint {row.id}, of step {row.step}, is {change}", "checkpoint": row.id}
    events.append(conn, row.job_id, Kind.NOTE, data, now, by=by)
