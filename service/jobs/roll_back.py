"""Makes a job that holds no slots continue from one of its older checkpoints, as if it had never got further.

The newer checkpoints are deleted, because each attempt continues from the newest one. Live commands that were carried
out after the checkpoint's step are forgotten. Otherwise training would repeat them at the same step, as after a crash,
and a learning rate that spoilt the training would be set again.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection

from footplate.contract.errors import Conflict
from footplate.contract.events import ProgressData
from footplate.contract.lifecycle import JobState
from service.jobs.checkpoints import CheckpointPinned
from service.jobs.start_checkpoint import CheckpointInUse, choose
from service.store import checkpoints, commands, curves, jobs
from service.store.checkpoints import GONE, LATEST
from service.store.row_types import CheckpointRow, JobRow, loads

FORK = "or fork the job from {}, which deletes nothing"


def find_start(conn: Connection, job: JobRow, name: str) -> CheckpointRow | None:
    """Returns the checkpoint from which a resume continues. None: `name` is "latest", and the job has none.

    Raises InvalidSpec if the job has no such checkpoint, and Conflict if the job may still save a newer one.
    """
    rows = checkpoints.of_job(conn, job.id)
    if name == LATEST:
        return checkpoints.named(checkpoints.committed(rows), LATEST)
    if job.state is JobState.STOPPING:
        raise Conflict(
            f"job {job.id} is still stopping and may save another checkpoint, so it continues from its newest one",
            hint="wait until it is paused, and then resume it from an older checkpoint",
            state=job.state,
            allowed=job.actions,
        )
    return choose(rows, job, name, pointer="/checkpoint")


def roll_back(conn: Connection, job: JobRow, start: CheckpointRow) -> str | None:
    """Deletes the checkpoints that are newer than `start`. Returns a sentence about them, or None if there are none.

    Raises CheckpointPinned, or CheckpointInUse if another job has to start from one of them.
    """
    later_rows = [row for row in checkpoints.of_job(conn, job.id) if row.no > start.no and row.status not in GONE]
    # A later row with the path of `start` is `start`, saved again.
    newer_rows = [row for row in later_rows if row.path != start.path]
    if not newer_rows:
        return None
    _require_free(conn, job, start, newer_rows)
    checkpoints.mark(conn, job.id, {row.path for row in newer_rows}, checkpoints.DELETING)
    if any(row.is_best for row in newer_rows):
        _restore_best(conn, job)
    commands.forget_after(conn, job.id, start.step)
    continue_at(conn, job, start, attempt=job.attempt + 1)
    steps = ", ".join(str(row.step) for row in reversed(newer_rows[:5])) + (" and more" if len(newer_rows) > 5 else "")
    return f"continues from checkpoint {start.id}, of step {start.step}; newer checkpoints are deleted: of step {steps}"


def _require_free(conn: Connection, job: JobRow, start: CheckpointRow, newer_rows: Sequence[CheckpointRow]) -> None:
    for row in newer_rows:
        if row.is_pinned:
            raise CheckpointPinned(
                f"the job cannot continue from checkpoint {start.id}, because the newer checkpoint {row.id}, of step "
                f"{row.step}, would be deleted, but is pinned",
                hint=f"unpin it first, {FORK.format(start.id)}",
            )
    ids = {row.id for row in newer_rows}
    for hold in checkpoints.held(conn, job.id):
        if hold.id in ids:
            raise CheckpointInUse(
                f"the job cannot continue from checkpoint {start.id}, because the newer checkpoint {hold.id}, of step "
                f"{hold.step}, would be deleted, but job {hold.by} needs it",
                hint=f"cancel job {hold.by}, or wait until it ends or has a checkpoint of its own, "
                f"{FORK.format(start.id)}",
            )


def _restore_best(conn: Connection, job: JobRow) -> None:
    """Marks the best of the remaining checkpoints: the newest one that was the best when it was saved."""
    rows = checkpoints.committed(checkpoints.of_job(conn, job.id))
    points = curves.points(conn, job.id, [row.no for row in rows])
    for row in rows:
        if row.no in points and json.loads(points[row.no][3]).get("is_best"):
            checkpoints.change(conn, row.id, is_best=True)
            return


def continue_at(conn: Connection, job: JobRow, start: CheckpointRow, *, attempt: int) -> str | None:
    """Moves curves, metrics and progress back to the checkpoint from which this attempt continues.

    Returns the job's metrics as JSON.
    """
    curves.end_at(conn, job.id, start.step, before=attempt)
    progress = loads(job.progress)
    if progress is None or progress["step"] <= start.step:
        return job.metrics
    metrics = json.dumps(_metrics_at(conn, start))
    points = curves.points(conn, job.id, [start.no])
    epoch = points[start.no][2] if start.no in points else None
    new_progress = ProgressData(step=start.step, max_steps=progress["max_steps"], epoch=epoch or 0.0)
    jobs.record(conn, job.id, progress=new_progress.model_dump_json(), metrics=metrics)
    return metrics


def _metrics_at(conn: Connection, start: CheckpointRow) -> dict[str, Any]:
    """Returns the latest value that each metric had when the job saved a checkpoint."""
    metrics: dict[str, Any] = {}
    for row in reversed(checkpoints.of_job(conn, start.job_id)):
        # A checkpoint that was saved earlier, but at a later step, is from an attempt whose steps no longer count.
        if row.no <= start.no and row.step <= start.step:
            metrics |= loads(row.metrics)
    return metrics
