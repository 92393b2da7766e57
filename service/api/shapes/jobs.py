"""Jobs: as they are answered, forked, asked many at once, validated, and waiting."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from footplate.contract.events import Failure
from footplate.contract.lifecycle import Action, Desired, JobState, Reason
from service.api.shapes.shape import Json, Shape


class Progress(Shape):
    step: int
    max_steps: int
    epoch: float
    eta_s: float | None = None


class SpecWarning(Shape):
    code: str
    """`older_name`: an argument was renamed. `no_loss_shown`: the run ends before its first log."""
    pointer: str
    """Into the body that was sent."""
    detail: str
    """What happens, and what to write instead."""


class Job(Shape):
    id: str
    project: str
    name: str | None
    tags: list[str]
    metadata: Json
    priority: int
    state: JobState
    reason: Reason
    message: str | None
    """The reason in a sentence, where there is more to say."""
    desired: Desired
    actions: list[Action]
    """What would change something now."""
    attempt: int
    """The newest attempt's number; 0 before the first."""
    node: str | None
    """Where rank 0 runs."""
    nodes: list[str]
    version: int
    """The ETag: moves with PATCH and state, not with progress."""
    last_no: int
    """The newest event's number: a cursor to follow from."""
    created_at: str
    updated_at: str
    queued_at: str
    started_at: str | None
    finished_at: str | None
    running_s: float
    """Running time over all closed attempts."""
    progress: Progress | None
    metrics: Json
    """The latest value by name."""
    result: Json | None
    """Final and best."""
    error: Failure | None
    warnings: list[SpecWarning]
    """What its user may want to know about a spec that was accepted, as `POST /jobs` has answered it."""


class SpecChange(Shape):
    pointer: str
    """Into the effective spec."""
    from_: Any = Field(alias="from")
    to: Any


class Inexact(Shape):
    pointer: str
    detail: str


class ForkPoint(Shape):
    id: str
    step: int


class ForkOf(Shape):
    job: str
    checkpoint: ForkPoint
    mode: Literal["full", "weights"]
    changes: list[SpecChange]
    """Every value of the effective spec that differs from the other job's."""
    exact: bool
    """Whether it goes on as the other job would have, to the last bit on the same hardware."""
    breaks_exactness: list[Inexact]
    """Why not, value by value."""


class ForkedJob(Job):
    fork: ForkOf
    """Where it comes from. In this answer only: the job's history has a note of it, and its spec the checkpoint."""


class JobList(Shape):
    data: list[Job]
    next_cursor: str | None
    total_estimate: int


class BulkError(Shape):
    status: int
    """What it would have been answered, asked alone."""
    code: str
    detail: str
    hint: str | None
    state: JobState | None = None
    allowed: list[Action] | None = None


class BulkItem(Shape):
    job: str
    state: JobState | None
    """As it is then; null: there is none."""
    error: BulkError | None
    """null: it was done, or held already."""


class BulkOutcome(Shape):
    data: list[BulkItem]
    next_cursor: str | None
    """Send the same again with it as `cursor`: more jobs match."""


class Ahead(Shape):
    yours: int
    others: int
    """Of other projects: only how many."""


class QueuedJob(Shape):
    job: str
    project: str
    name: str | None
    priority: int
    pool: str
    needs: str
    """What it asks of nodes, in words."""
    place: int | None
    """From 1, among all that wait for its pool; a lower bound behind 10,000 jobs. null while it may not start yet."""
    ahead: Ahead
    """Whose jobs are tried before it. A smaller one behind it may still go first, where it leaves nothing unused."""
    reason: Reason
    message: str | None
    queued_at: str
    waited_s: float
    """Since it was submitted or resumed, or its last attempt ended; `queued_at` says by which age it is tried."""
    starts_after: str | None
    """It may not start before: the pause before a retry."""


class Queue(Shape):
    data: list[QueuedJob]
    next_cursor: str | None
    waiting: Ahead
    """How many wait in all. Each number is exact up to 1,000, and a lower bound where more wait."""


class Placement(Shape):
    waits: bool
    reason: str
    node: str | None
    message: str


class Validation(Shape):
    valid: Literal[True]
    spec: Json
    """The effective spec, with every default; of `training` what differs from them. GET /schema/job has those."""
    steps: int | None
    """Optimizer steps, where the spec says them; else known once the data is."""
    parameters: int | None
    """Where known."""
    placement: Placement
    """Where it would be placed now, or why it would wait."""
    warnings: list[SpecWarning]
    """What its user may want to know about the spec."""
