"""Resources of jobs: one job, a list, a fork, a bulk verb's outcome, the queue, and a validated spec."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from footplate.contract.events import Failure
from footplate.contract.fields import Json, OpenEnum, Page, Resource
from footplate.contract.lifecycle import Action, Desired, JobState, Reason
from footplate.contract.resources.history import MetricSummary

StateWord = Annotated[str, OpenEnum(JobState)]
ReasonWord = Annotated[str, OpenEnum(Reason)]
ActionWord = Annotated[str, OpenEnum(Action)]


class Progress(Resource):
    step: int
    max_steps: int
    epoch: float
    eta_s: float | None = None


class SpecWarning(Resource):
    """A warning about a spec that was accepted."""

    code: str
    """`older_name`: an argument was renamed. `no_loss_shown`: the run ends before its first log. Stable: programs may
    compare it."""
    pointer: str
    """The place in the body that was sent, as an RFC 6901 pointer."""
    detail: str
    """The consequence, and what to write instead."""


class Job(Resource):
    """A job as it was when the service answered."""

    id: str
    project: str
    name: str | None
    tags: tuple[str, ...]
    metadata: Json
    priority: int
    state: StateWord
    reason: ReasonWord
    message: str | None
    """A sentence with the details of the reason. null: there are none."""
    desired: Annotated[str, OpenEnum(Desired)]
    actions: tuple[ActionWord, ...]
    """The verbs that would change something now."""
    attempt: int
    """The newest attempt's number; 0 before the first."""
    node: str | None
    """The node on which rank 0 runs."""
    nodes: tuple[str, ...]
    version: int
    """The ETag. It changes with PATCH and with the state, not with progress."""
    last_no: int
    """The newest event's number: a cursor to follow from."""
    created_at: str
    updated_at: str
    queued_at: str
    started_at: str | None
    finished_at: str | None
    running_s: float
    """The running time over all closed attempts."""
    progress: Progress | None
    metrics: Json
    """The latest value of each metric, by name."""
    result: Json | None
    """The final metrics, and the best checkpoint with its metrics."""
    error: Failure | None
    warnings: tuple[SpecWarning, ...]
    """The warnings about the spec, as `POST /jobs` answered them."""
    external: bool = False
    """True if other machines run the job, and only report to this service: `POST /external/{run}`."""


class SpecChange(Resource):
    """A value of a spec that a fork changes."""

    pointer: str
    """The place in the effective spec."""
    old: Any = Field(alias="from")
    new: Any = Field(alias="to")


class Inexact(Resource):
    pointer: str
    detail: str


class ForkPoint(Resource):
    id: str
    step: int


class ForkOf(Resource):
    """The checkpoint from which a forked job starts, and what differs."""

    job: str
    checkpoint: ForkPoint
    mode: Annotated[str, OpenEnum(Literal["full", "weights"])]
    changes: tuple[SpecChange, ...]
    """Every value of the effective spec that differs from the other job's."""
    exact: bool
    """The job continues as the other would have, to the last bit on the same hardware."""
    breaks_exactness: tuple[Inexact, ...]
    """The changes for which it is not exact."""


class ForkedJob(Job):
    fork: ForkOf
    """The origin of the job. Only this answer has it: later, the spec names the checkpoint and a note in the history
    the rest."""


class JobList(Page[Job]):
    total_estimate: int
    specs: dict[str, Json] | None = None
    """The effective spec of each job, by id, if the request includes it."""
    summaries: dict[str, tuple[MetricSummary, ...]] | None = None
    """The summaries of each job's metrics, by id, if the request includes them."""


class BulkError(Resource):
    status: int
    """The status that the same verb would have answered for this job alone."""
    code: str
    detail: str
    hint: str | None
    state: StateWord | None = None
    allowed: tuple[ActionWord, ...] | None = None


class BulkItem(Resource):
    """The outcome of a bulk verb for one job."""

    job: str
    state: StateWord | None
    """The state after the verb. null: there is no such job, or no longer."""
    error: BulkError | None
    """The refusal. null if the action was carried out, or if its goal held already."""


class BulkOutcome(Resource):
    data: tuple[BulkItem, ...]
    next_cursor: str | None
    """The cursor for the same request if more jobs match. null if no more match."""


class Ahead(Resource):
    yours: int
    others: int
    """The number of other projects' jobs."""


class QueuedJob(Resource):
    job: str
    project: str
    name: str | None
    priority: int
    pool: str
    needs: str
    """The needs of the job in words."""
    place: int | None
    """The place in the pool's queue, from 1. Behind 10,000 jobs a lower bound. null while the job may not start yet."""
    ahead: Ahead
    """The jobs that are tried before this one. A smaller one behind it may still start first if nothing else fits."""
    reason: ReasonWord
    message: str | None
    queued_at: str
    waited_s: float
    """Seconds since the job was submitted or resumed, or since its last attempt ended."""
    starts_after: str | None
    """The end of the wait before a retry. null: the job may start now."""


class Queue(Page[QueuedJob]):
    waiting: Ahead
    """The number of jobs that wait in all. Each number is exact up to 1,000, and a lower bound above."""


class Placement(Resource):
    waits: bool
    reason: str
    node: str | None
    message: str


class Validation(Resource):
    """The answer that `POST /jobs` would give to a good spec, without a job."""

    valid: Literal[True]
    spec: Json
    """The effective spec with every default. `training` has only what differs from its defaults."""
    steps: int | None
    """The number of optimizer steps, if the spec says it. Else it depends on the data."""
    parameters: int | None
    """The number of parameters, if known."""
    placement: Placement
    """The node on which the job would start now, or why it would wait."""
    warnings: tuple[SpecWarning, ...]
    """The warnings about the spec."""
