"""Queues a paused, failed or cancelled job again, with changes. It continues from its newest verified checkpoint.

With the name of an older checkpoint, the newer ones are deleted first (`roll_back`). A job that still stops for a pause
is queued as soon as its attempt has stopped.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

from pydantic import Field
from sqlalchemy import Connection

from footplate.contract.components import Catalogue
from footplate.contract.errors import Conflict, InvalidSpec, Problem
from footplate.contract.events import Kind
from footplate.contract.fields import Group, Slug, Whole
from footplate.contract.ids import JobId
from footplate.contract.lifecycle import Action, Desired, JobState, Reason
from footplate.contract.machine import TimeLimit
from footplate.contract.spec import JobSpec
from footplate.contract.spec_parts import CheckpointName
from service.jobs.installed import problems_missing_everywhere
from service.jobs.needs import Needs
from service.jobs.roll_back import find_start, roll_back
from service.jobs.stopping import lock_for, refuse
from service.store import commands, events, jobs
from service.store.checkpoints import LATEST
from service.store.row_types import CheckpointRow, JobRow
from service.store.stored_spec import read_spec

_RESTING = frozenset({JobState.PAUSED, JobState.FAILED, JobState.CANCELLED})

IT_IS_DONE = "fork it: the fork is a new job that continues from one of its checkpoints"


class Resume(Group):
    """The checkpoint to continue from, and fields of the spec to change. A field that is left out does not change."""

    checkpoint: CheckpointName = LATEST
    """"latest", "best" or a checkpoint's id. If it is not the newest, all newer checkpoints of the job are deleted. To
    keep them, fork the job instead."""
    priority: Annotated[Whole, Field(ge=-100, le=100)] | None = None
    pool: Slug | None = None
    resources: dict[str, Any] | None = None
    """The fields of the spec's `resources` to replace."""
    max_steps: Annotated[Whole, Field(ge=1)] | None = None
    """A higher limit of steps."""
    num_train_epochs: Annotated[float, Field(gt=0)] | None = None
    """A higher limit of epochs."""
    time_limit: TimeLimit | None = None
    """A higher time limit, in seconds or as "4h"."""


NO_CHANGES = Resume()


def resume(
    conn: Connection,
    project: str,
    job_id: JobId,
    changes: Resume,
    now: int,
    *,
    by: str | None = None,
    catalogues: Sequence[Catalogue] = (),
) -> JobRow:
    """Resumes a job and returns it. `catalogues` has the catalogues of all nodes.

    Raises NotFound, Conflict, CheckpointPinned and CheckpointInUse. Raises InvalidSpec if the job has no such
    checkpoint, or if the changed spec is not valid or needs something that no node has.
    """
    job = lock_for(Action.RESUME, conn, project, job_id)
    is_pausing = job.state is JobState.STOPPING and job.desired is Desired.PAUSE
    if job.state not in _RESTING and not is_pausing:
        if job.desired is Desired.RUN and not job.state.is_terminal:
            _require_held(conn, job, changes)
            return job
        refuse(job, Action.RESUME, hint=IT_IS_DONE if job.state is JobState.SUCCEEDED else None)
    columns = _changed(job, changes, catalogues)
    start = find_start(conn, job, changes.checkpoint)
    _require_ahead(start, changes)
    limit_ms = columns.get("time_limit_ms", job.time_limit_ms)
    if limit_ms is not None and job.running_ms >= limit_ms:
        reason = f"it has run for {job.running_ms / 1000:g} s, and its time limit is {limit_ms / 1000:g} s"
        hint = 'resume it with a higher limit, such as {"time_limit": "4h"}'
        raise Conflict(f"job {job.id} cannot be resumed: {reason}", hint=hint, state=job.state, allowed=job.actions)
    if changes.max_steps is not None or changes.num_train_epochs is not None:
        # The new max_steps replaces one that a live command has set before.
        commands.forget_set(conn, job.id, ["max_steps"])
    message = roll_back(conn, job, start) if start is not None and changes.checkpoint != LATEST else None
    columns |= {"desired": Desired.RUN, "failed_attempts": 0, "failed_without_checkpoint": 0, "error": None}
    if is_pausing:
        # The attempt still stops with a checkpoint.
        why = {"reason": Reason.RESUMED, "message": "the job is queued again as soon as it has stopped"}
        jobs.change(conn, job.id, now=now, **why, **columns)
        events.append(conn, job.id, Kind.STATE, {"state": job.state, **why}, now, by=by)
    else:
        jobs.move(
            conn, job.id, to=JobState.QUEUED, expect=[job.state], reason=Reason.RESUMED, message=message, now=now,
            step=start.step if start and message else None, by=by, queued_at=now, finished_at=None,
            not_before=None, **columns,
        )  # fmt: skip
    return jobs.get(conn, project, job_id)


def _require_held(conn: Connection, job: JobRow, changes: Resume) -> None:
    """Accepts a resume of an active job if it changes nothing, so that a resume can be repeated.

    Raises Conflict if the resume would change the job, and InvalidSpec if the changed spec is not valid.
    """
    if _is_held(conn, job, changes):
        return
    names = ", ".join(changes.model_dump(exclude_none=True, exclude_defaults=True))
    raise Conflict(
        f"job {job.id} is {job.state}, so this resume cannot set {names}: only a paused, failed or cancelled job can "
        "be changed by a resume",
        hint="pause the job first; PATCH changes its priority at any time",
        state=job.state,
        allowed=job.actions,
    )


def _is_held(conn: Connection, job: JobRow, changes: Resume) -> bool:
    if changes.checkpoint != LATEST and find_start(conn, job, changes.checkpoint) != find_start(conn, job, LATEST):
        return False
    columns = _changed(job, changes, catalogues=())
    if not columns:
        return True
    new_spec, old_spec = (JobSpec.parse(read_spec(spec)) for spec in (columns["spec"], job.spec))
    return (
        columns["priority"] == job.priority and new_spec.model_copy(update={"priority": old_spec.priority}) == old_spec
    )


def _require_ahead(start: CheckpointRow | None, changes: Resume) -> None:
    """Raises InvalidSpec if `max_steps` is below the step of the checkpoint to continue from.

    Such a job would succeed at once without training a step.
    """
    reached_step = 0 if start is None else start.step
    if changes.max_steps is not None and 0 < changes.max_steps < reached_step:
        detail = f"is {changes.max_steps}, and the job has reached step {reached_step} already"
        if changes.checkpoint != LATEST:
            detail = f"is {changes.max_steps}, and the checkpoint is of step {reached_step}"
        hint = f"send more than {reached_step} to train further, or continue from an older checkpoint"
        raise InvalidSpec([Problem("/max_steps", "out_of_range", detail, hint)])


def _changed(job: JobRow, changes: Resume, catalogues: Sequence[Catalogue]) -> dict[str, Any]:
    """Returns the columns of the job's row with their values after the changes, or {} if there are no changes."""
    if changes.model_copy(update={"checkpoint": LATEST}) == NO_CHANGES:
        return {}

    def stated(*names: str) -> dict[str, Any]:
        return {name: value for name, value in changes if name in names and value is not None}

    document = read_spec(job.spec)
    resources = {**document["resources"], **(changes.resources or {}), **stated("pool", "time_limit")}
    training = {**document["training"], **stated("max_steps", "num_train_epochs")}
    spec = JobSpec.parse({**document, **stated("priority"), "resources": resources, "training": training})
    if changes.resources and (problems := problems_missing_everywhere(spec, catalogues)):
        raise InvalidSpec(problems)
    limit = spec.resources.time_limit
    return {
        "spec": spec.model_dump_json(),
        "needs": Needs.of(spec).to_json(),
        "priority": job.priority if changes.priority is None else spec.priority,
        "time_limit_ms": None if limit is None else round(limit * 1000),
    }
