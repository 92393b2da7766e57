"""Finds the checkpoint of another job that a new job starts from, and keeps it until the new job has its own.

"latest" and "best" are replaced by the checkpoint's id when the new job is accepted. So its spec names the same
checkpoint even if the other job saves more.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection

from footplate.contract.arguments.training import fixed
from footplate.contract.errors import FootplateError, InvalidSpec, Problem
from footplate.contract.ids import CheckpointId, JobId
from footplate.contract.lifecycle import JobState
from footplate.contract.messages import CheckpointOffer
from footplate.contract.spec import JobSpec
from service.store import checkpoints, jobs
from service.store.row_types import CheckpointRow, JobRow
from service.store.stored_spec import read_spec

WEIGHTS_ALONE = 'take the weights alone: "mode": "weights"'


class CheckpointInUse(FootplateError):
    code = "checkpoint_in_use"
    status = 409
    title = "A job starts from this checkpoint"


@dataclass(frozen=True, slots=True)
class StartCheckpoint:
    """The checkpoint that a job starts from, and the job that wrote it."""

    job: JobRow
    checkpoint: CheckpointRow

    def pinned(self, spec: JobSpec) -> JobSpec:
        """Returns the spec with the id of this checkpoint in it."""
        assert spec.resume_from is not None
        place = spec.resume_from.model_copy(update={"checkpoint": self.checkpoint.id})
        return spec.model_copy(update={"resume_from": place})


def find(conn: Connection, project: str, spec: JobSpec, *, hold: bool = False) -> StartCheckpoint | None:
    """Returns the checkpoint that a spec starts from, or None if it names no other job. Raises InvalidSpec.

    With `hold`, no rotation can delete the checkpoint before the end of this transaction, which writes the new job.
    """
    if spec.resume_from is None or spec.resume_from.job is None:
        return None
    job_id = JobId(spec.resume_from.job)
    job = jobs.lock(conn, job_id, project=project) if hold else jobs.find(conn, project, job_id)
    if job is None:
        detail = f"there is no job {job_id!r} in this project"
        raise InvalidSpec([Problem("/resume_from/job", "unknown_job", detail, "GET /jobs lists them")])
    start = StartCheckpoint(job, choose(checkpoints.of_job(conn, job_id), job, spec.resume_from.checkpoint))
    if problems := list(unfit(start.job, spec)):
        raise InvalidSpec(problems)
    return start


def choose(
    rows: Sequence[CheckpointRow], job: JobRow, name: str, *, pointer: str = "/resume_from/checkpoint"
) -> CheckpointRow:
    """Returns the checkpoint that `name` names, from the job's `rows`, newest first.

    Raises InvalidSpec, whose `pointer` leads to the name in the request.
    """
    committed_rows = checkpoints.committed(rows)
    if row := checkpoints.named(committed_rows, name):
        return row
    code, detail = why_not(rows, committed_rows, job, name)
    hint = (
        f"the job's newest checkpoint is {committed_rows[0].id}, of step {committed_rows[0].step}"
        if committed_rows
        else _without_any(job)
    )
    raise InvalidSpec([Problem(pointer, code, detail, hint)])


def _without_any(job: JobRow) -> str:
    """Returns the hint for a request that needs a checkpoint of a job that has none."""
    advice = f"submit the job's spec again (GET /jobs/{job.id}/spec), to begin at step 0"
    if not job.state.is_terminal:
        return f"wait until the job has saved one; or {advice}"
    if job.state is not JobState.SUCCEEDED:
        return advice
    return (
        f"the job's outputs have its model: `footplate download {job.id}`. To try, fork or export a model here, "
        f"{advice}, and keep the checkpoints"
    )


def why_not(rows: Sequence[CheckpointRow], choices: Sequence[CheckpointRow], job: JobRow, name: str) -> tuple[str, str]:
    """Returns the code and the detail of the problem that `name` names none of the job's `choices` among `rows`."""
    named_row = next((row for row in rows if row.id == name), None)
    if named_row is not None:
        cause = "was found to be corrupt" if named_row.status == checkpoints.CORRUPT else "was removed"
        return "checkpoint_gone", f"checkpoint {name} of job {job.id}, of step {named_row.step}, {cause}"
    if not choices:
        more = " any more" if rows else ", and it has ended" if job.state.is_terminal else " yet"
        return "no_checkpoint", f"job {job.id} has no checkpoint{more}"
    if name == "best":
        return (
            "no_checkpoint",
            f"job {job.id} has no best checkpoint: metric_for_best_model is not set, or the checkpoint was deleted",
        )
    return "unknown_checkpoint", f"job {job.id} has no checkpoint {name}"


def unfit(job: JobRow, spec: JobSpec) -> Iterator[Problem]:
    """Yields a problem for each difference between the two specs with which training cannot continue."""
    place = spec.resume_from
    if place is None or place.mode == "weights" or (spec.data.train is None and spec.loop is None):
        return
    other_spec = read_spec(job.spec)
    if bool(other_spec.get("loop")) is not (spec.loop is not None):
        which = f"this job, and not job {job.id}," if spec.loop else f"job {job.id}, and not this one,"
        detail = f"{which} has a loop of its own: neither can continue from the other's checkpoints"
        yield Problem("/resume_from/mode", "cannot_continue", detail, None if spec.loop else WEIGHTS_ALONE)
        return
    if spec.loop is not None:
        return
    if other_spec["training"].get("save_only_model"):
        detail = f"job {job.id} has save_only_model: its checkpoints hold a model, and no state to continue from"
        yield Problem("/resume_from/mode", "cannot_continue", detail, WEIGHTS_ALONE)
    before, now = dict[str, Any](other_spec["training"]), spec.as_json()["training"]
    for name in fixed(spec.training):
        if before.get(name) != now.get(name):
            old_value = json.dumps(before[name]) if name in before else "left out"
            detail = f"was {old_value} in job {job.id}: a checkpoint does not fit a run with another {name}"
            yield Problem(f"/training/{name}", "cannot_change", detail, f"keep it, or {WEIGHTS_ALONE}")


def require_unheld(conn: Connection, job_id: JobId, checkpoint: CheckpointId | None = None) -> None:
    """Raises CheckpointInUse if another job still has to start from this checkpoint. None means any checkpoint.

    The caller holds the job's lock, so that no new job can name one of its checkpoints meanwhile.
    """
    for hold in checkpoints.held(conn, job_id):
        if checkpoint in (None, hold.id):
            raise CheckpointInUse(
                f"checkpoint {hold.id} of job {job_id} cannot be deleted, because job {hold.by} has to start from it",
                hint=f"cancel job {hold.by}, or wait until it ends or has a checkpoint of its own",
            )


def offer(conn: Connection, job: JobRow) -> list[CheckpointOffer]:
    """Returns a list with the checkpoint of another job from which this job starts while it has none of its own.

    The list is empty if the spec names no other job. It is also empty if the other job was deleted: then the worker
    reports the missing checkpoint.
    """
    row = None if job.starts_from is None else checkpoints.find(conn, CheckpointId(job.starts_from))
    if row is None:
        return []
    return [offered(row, of=row.job_id)]


def offered(row: CheckpointRow, **fields: Any) -> CheckpointOffer:
    return CheckpointOffer(id=row.id, step=row.step, path=row.path, manifest_sha256=row.manifest_sha256, **fields)
