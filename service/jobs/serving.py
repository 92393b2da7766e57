"""Finds or opens the serving session of a checkpoint: a job that answers requests instead of training.

A session is placed, granted, watched, stopped and rescued like any job. It starts from the checkpoint, which therefore
cannot be deleted until the session has ended. Each checkpoint has at most one open session.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy import Connection

from footplate.contract.errors import FootplateError, InvalidSpec, Problem
from footplate.contract.ids import JobId, new_job_id
from footplate.contract.lifecycle import Desired, JobState, StopMode
from footplate.contract.serving import AdapterOffer
from footplate.contract.spec import JobSpec
from footplate.contract.spec_parts import Serve
from service.jobs.fork import document_of
from service.jobs.model_card import model_card
from service.jobs.start_checkpoint import choose
from service.jobs.stopping import cancel
from service.jobs.submit import Submission
from service.store import checkpoints, jobs
from service.store.checkpoints import BEST, LATEST
from service.store.row_types import CheckpointRow, JobRow
from service.store.stored_spec import StoredSpec, is_session, read_spec, trains

STEP = "step-"
"""The beginning of the name of a checkpoint by its step: `step-500` is the checkpoint of step 500."""
OPEN = (JobState.QUEUED, JobState.STARTING, JobState.RUNNING)
KEPT = ("model", "processor", "collator", "trainer", "code", "env", "secrets", "project", "priority")
"""The fields that a session takes from the job's spec."""
KEPT_TRAINING = (
    "bf16", "fp16", "tf32", "use_cpu", "seed", "label_names", "remove_unused_columns", "per_device_eval_batch_size",
)  # fmt: skip
KEPT_SETTINGS = ("processor", "collator", "code", "env", "secrets")
KEPT_RESOURCES = ("gpu", "pool", "stall_limit")


class CheckpointMissing(FootplateError):
    """The job has no such checkpoint, or not yet."""

    code = "no_checkpoint"
    status = 409
    title = "There is no such checkpoint"

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.detail, hint=problem.hint)
        self.code = problem.code


class NotServable(FootplateError):
    """The job's checkpoints cannot be loaded without the job's own code."""

    code = "not_servable"
    status = 409
    title = "This job cannot be tried"


@dataclass(frozen=True, slots=True)
class ServedCheckpoint:
    """A checkpoint of a job, and its open session if it has one."""

    job: JobRow
    checkpoint: CheckpointRow
    name: str
    """The checkpoint as the request names it: "latest", "best", an id, or `step-` and a number."""
    session: JobRow | None
    adapter: AdapterOffer | None = None
    """The checkpoint as an adapter for a session that serves another checkpoint of the same base model."""

    @property
    def limits(self) -> Serve:
        assert self.session is not None
        return Serve.model_validate(read_spec(self.session.spec)["serve"])


def find(conn: Connection, project: str, job_id: JobId, name: str | None, *, shares: bool = False) -> ServedCheckpoint:
    """Returns a checkpoint with its open session. Without a name, the checkpoint is that of the job's outputs.

    With `shares`, the session may serve another checkpoint if both are adapters of the same base model.
    Raises NotFound, NotServable and CheckpointMissing.
    """
    served = _find_checkpoint(conn, jobs.get(conn, project, job_id), name)
    if served.session is not None or not shares or (base := _base_of(served.job)) is None:
        return served
    for row in jobs.started_from_others(conn, project):
        if _is_open_session(row) and _base_of(row) == base:
            adapter = served.checkpoint
            offer = AdapterOffer(id=adapter.id, path=adapter.path, manifest_sha256=adapter.manifest_sha256)
            return replace(served, session=row, adapter=offer)
    return served


def open_session(
    conn: Connection, served: ServedCheckpoint, spec: JobSpec, now: int, *, stop_seconds: float, by: str | None
) -> ServedCheckpoint:
    """Submits a session for the checkpoint, unless another request has opened one meanwhile. Returns the session."""
    # While the job is locked, no other request opens a session and no rotation deletes the checkpoint.
    job = jobs.lock_for_user(conn, served.job.project, served.job.id)
    locked_checkpoint = _find_checkpoint(conn, job, served.checkpoint.id)
    if locked_checkpoint.session is not None:
        return replace(locked_checkpoint, name=served.name)
    if served.name == LATEST:
        # A running job has only one such session at a time.
        for row in _open_sessions(conn, job.id):
            if json.loads(row.job_metadata or "{}").get("checkpoint") == LATEST:
                cancel(conn, job.project, row.id, StopMode.GRACEFUL, now, stop_seconds=stop_seconds, by=by)
    message = (
        f"answers requests with checkpoint {served.checkpoint.id} of job {job.id}, of step {served.checkpoint.step}"
    )
    session = _submit(conn, job, spec, now, code="serving", message=message, by=by)
    return replace(locked_checkpoint, name=served.name, session=session)


def start_export(conn: Connection, served: ServedCheckpoint, spec: JobSpec, now: int, *, by: str | None) -> JobRow:
    """Submits the job that exports the checkpoint."""
    job = jobs.lock_for_user(conn, served.job.project, served.job.id)
    message = f"exports checkpoint {served.checkpoint.id} of job {job.id}, of step {served.checkpoint.step}"
    return _submit(conn, job, spec, now, code="export", message=message, by=by)


def _submit(
    conn: Connection, source: JobRow, spec: JobSpec, now: int, *, code: str, message: str, by: str | None
) -> JobRow:
    """Submits a job that uses a checkpoint of `source`, with a note that says so."""
    note = {"message": message, "code": code, "job": source.id}
    submission = Submission(
        project=source.project, spec=spec, spec_json=spec.model_dump_json(), now=now, job_id=new_job_id(), by=by,
        note=note,
    )  # fmt: skip
    return submission(conn).job


def session_spec(served: ServedCheckpoint) -> JobSpec:
    """Returns the spec of a serving session with the default idle time and other limits."""
    return _spec(served, f"try {served.job.name or served.job.id}", {"serve": {}})


def export_spec(served: ServedCheckpoint, *, merge: bool) -> JobSpec:
    """Returns the spec of a job that writes the checkpoint's model and its card to the outputs."""
    card = model_card(served.job, served.checkpoint, is_merged=merge)
    return _spec(served, f"export {served.job.name or served.job.id}", {"export": {"merge": merge, "card": card}})


def _spec(served: ServedCheckpoint, name: str, use: dict[str, Any]) -> JobSpec:
    """Returns the spec of a session or export: the model of the job's spec without the fields for training."""
    document = document_of(served.job)
    gpus = document["resources"].get("gpus_per_node")
    training = {name: value for name, value in document["training"].items() if name in KEPT_TRAINING}
    if (trainer := document.get("trainer")) is not None and ":" not in trainer["use"]:
        # A trainer of a library is left out, because some of them need data. A subclass in the bundle stays, because it
        # may change the prediction.
        document["trainer"] = None
    resources = {name: value for name, value in document["resources"].items() if name in KEPT_RESOURCES}
    place = {"job": served.job.id, "checkpoint": served.checkpoint.id, "mode": "weights"}
    return JobSpec.parse({
        **{name: value for name, value in document.items() if name in KEPT and value is not None},
        "name": name[:128],
        "metadata": {"of": served.job.id, "checkpoint": served.name},
        "data": {"map": document["data"]["map"]},
        "training": training,
        "resources": {**resources, "gpus_per_node": gpus if gpus is None else min(gpus, 1)},
        "retry": {"max_attempts": 1},
        "resume_from": place,
        **use,
    })  # fmt: skip


def _find_checkpoint(conn: Connection, job: JobRow, name: str | None) -> ServedCheckpoint:
    spec = read_spec(job.spec)
    if not trains(spec):
        # A user's newest job may be a session that an earlier request opened. Find the job whose checkpoint it serves.
        source = spec["resume_from"]
        if source is None or source["job"] is None:
            raise NotServable(
                f"job {job.id} only serves or exports a folder, so it has no checkpoint", hint="name a job that trained"
            )
        return _find_checkpoint(conn, jobs.get(conn, job.project, JobId(source["job"])), name or source["checkpoint"])
    if spec.get("loop"):
        raise NotServable(
            f"job {job.id} has a loop of its own, so only its own code can load its checkpoints",
            hint=f"footplate download {job.id} --checkpoint latest",
        )
    rows = checkpoints.of_job(conn, job.id)
    name = name or final_name(spec, rows)
    by_step = {f"{STEP}{row.step}": row.id for row in reversed(checkpoints.committed(rows))}
    try:
        checkpoint = choose(rows, job, by_step.get(name, name))
    except InvalidSpec as invalid:
        raise CheckpointMissing(invalid.problems[0]) from invalid
    sessions = [row for row in _open_sessions(conn, job.id) if row.starts_from == checkpoint.id]
    return ServedCheckpoint(job, checkpoint, name, sessions[0] if sessions else None)


def final_name(spec: StoredSpec, rows: Sequence[CheckpointRow]) -> str:
    """Returns "best" if the job ends with its best checkpoint and has one, else "latest"."""
    has_best = checkpoints.named(checkpoints.committed(rows), BEST) is not None
    return BEST if has_best and spec["training"].get("load_best_model_at_end") else LATEST


def _base_of(job: JobRow) -> Any:
    """Returns a value that is equal for jobs whose adapters fit the same loaded model, or None without an adapter."""
    spec = read_spec(job.spec)
    if (model := spec["model"]) is None or not model["args"].get("peft"):
        return None
    args = {name: value for name, value in model["args"].items() if name != "peft"}
    if not args.get("path") or args.get("from_scratch"):
        return None
    training = {name: value for name, value in spec["training"].items() if name in KEPT_TRAINING and name != "seed"}
    settings = {name: value for name, value in spec.items() if name in KEPT_SETTINGS}
    return model["use"], args, spec["data"]["map"], training, spec["resources"]["pool"], settings


def _open_sessions(conn: Connection, job_id: JobId) -> list[JobRow]:
    return [row for row in jobs.started_from(conn, job_id) if _is_open_session(row)]


def running_sessions(conn: Connection, project: str) -> list[JobRow]:
    """Returns the sessions of a project that hold a slot and take requests, oldest first."""
    rows = jobs.started_from_others(conn, project)
    return [row for row in rows if row.state is JobState.RUNNING and _is_open_session(row)]


def end_sessions(
    conn: Connection, project: str, job_id: JobId, now: int, *, stop_seconds: float, by: str | None
) -> list[JobId]:
    """Cancels the sessions that answer with checkpoints of a job, and returns those that have not ended yet."""
    for row in _open_sessions(conn, job_id):
        cancel(conn, project, row.id, StopMode.GRACEFUL, now, stop_seconds=stop_seconds, by=by)
    return [row.id for row in jobs.started_from(conn, job_id) if is_session(read_spec(row.spec))]


def _is_open_session(row: JobRow) -> bool:
    return row.state in OPEN and row.desired is Desired.RUN and is_session(read_spec(row.spec))
