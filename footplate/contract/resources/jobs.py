"""Resources of jobs: one job, a list, a fork, a bulk action, the queue, a validated spec, and predictions."""

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

    def steps_text(self, separator: str = "/") -> str:
        """Returns the step and the number of all steps, such as "5/20". An own loop may not report the second one."""
        return f"{self.step}{separator}{self.max_steps}" if self.max_steps else str(self.step)


class SpecWarning(Resource):
    """A warning about a spec that was accepted."""

    code: str
    """`older_name`: an argument was renamed. `no_loss_shown`: the run ends before its first log. Codes never change, so
    programs may compare them."""
    pointer: str
    """The place in the request's body, as an RFC 6901 pointer."""
    detail: str
    """The consequence for the job, and what to write instead."""


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
    """A sentence with the details of `reason`. null: there are no details."""
    desired: Annotated[str, OpenEnum(Desired)]
    actions: tuple[ActionWord, ...]
    """The actions that would change the job's state now."""
    attempt: int
    """The newest attempt's number; 0 before the first."""
    node: str | None
    """The node on which rank 0 runs."""
    nodes: tuple[str, ...]
    version: int
    """The number in the job's ETag. It changes with PATCH and with the state, but not with progress."""
    last_no: int
    """The number of the job's newest event. A client that follows the events starts after this number."""
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
    """The warnings about the spec, as in the answer of `POST /jobs`."""
    external: bool = False
    """True if the job runs on machines outside this service, which only report to it by `POST /external/{run}`."""


class SpecChange(Resource):
    """A value of a spec that a fork changes."""

    pointer: str
    """The place of the value in the effective spec, as an RFC 6901 pointer."""
    old: Any = Field(alias="from")
    new: Any = Field(alias="to")


class Inexact(Resource):
    pointer: str
    detail: str


class ForkPoint(Resource):
    id: str
    step: int


class ForkOf(Resource):
    """The checkpoint from which a forked job starts, and the differences between the two jobs' specs."""

    job: str
    checkpoint: ForkPoint
    mode: Annotated[str, OpenEnum(Literal["full", "weights"])]
    changes: tuple[SpecChange, ...]
    """Every value of the effective spec that differs from the other job's."""
    exact: bool
    """True if the job continues exactly as the other job would have, to the last bit on the same hardware."""
    breaks_exactness: tuple[Inexact, ...]
    """The changes for which `exact` is false."""


class ForkedJob(Job):
    fork: ForkOf
    """The origin of the job. Only the answer to the fork contains this field. Later, the spec has the checkpoint, and a
    note in the job's history has the rest."""


class JobList(Page[Job]):
    total_estimate: int
    """The number of matching jobs up to 1,000. A higher number says that there are more than 1,000."""
    project: str = ""
    """The project whose jobs are listed. Empty from a service of a version without this field."""
    scopes: tuple[str, ...] = ()
    """The scopes that the caller's key includes: read, submit, code, admin. Empty from a service without this field."""
    specs: dict[str, Json] | None = None
    """The effective spec of each job, by id, if the request includes it."""
    summaries: dict[str, tuple[MetricSummary, ...]] | None = None
    """The summaries of each job's metrics, by id, if the request includes them."""


class BulkError(Resource):
    status: int
    """The HTTP status of the same action for this job alone."""
    code: str
    detail: str
    hint: str | None
    state: StateWord | None = None
    allowed: tuple[ActionWord, ...] | None = None


class BulkItem(Resource):
    """The outcome of a bulk action for one job."""

    job: str
    state: StateWord | None
    """The job's state after the action. null: the job does not exist, or was deleted."""
    error: BulkError | None
    """The reason for a refusal. null if the action was carried out, or if the job already was in the wanted state."""


class BulkOutcome(Resource):
    data: tuple[BulkItem, ...]
    next_cursor: str | None
    """The cursor for the next request, which covers further matching jobs. null if there are none."""


class Ahead(Resource):
    """The numbers of jobs that wait, in the caller's project and in others."""

    yours: int
    others: int


class QueuedJob(Resource):
    job: str
    project: str
    name: str | None
    priority: int
    pool: str
    needs: str
    """The resources that the job needs, in words, such as "2 GPUs"."""
    place: int | None
    """The job's place in the pool's queue, from 1. Above 10,000 the number is a lower bound. null while the job waits
    before a retry."""
    ahead: Ahead
    """The numbers of jobs before this one in the queue. A smaller job behind may still start first, if it fits."""
    reason: ReasonWord
    message: str | None
    queued_at: str
    waited_s: float
    """Seconds since the job was submitted or resumed, or since its last attempt ended."""
    starts_after: str | None
    """The time at which the wait before a retry ends. null: the job may start now."""


class Queue(Page[QueuedJob]):
    waiting: Ahead
    """The numbers of all waiting jobs. Each number is exact up to 1,000, and a lower bound above."""


class Placement(Resource):
    waits: bool
    reason: str
    node: str | None
    message: str


class Validation(Resource):
    """The result of checking a valid spec without making a job."""

    valid: Literal[True]
    spec: Json
    """The effective spec with every default. `training` has only what differs from its defaults."""
    steps: int | None
    """The number of optimizer steps, if the spec sets it. null if the number depends on the data."""
    parameters: int | None
    """The number of the model's parameters. null if it is unknown before the model is built."""
    placement: Placement
    """The node on which the job would start now, or the reason for which it would wait."""
    warnings: tuple[SpecWarning, ...]
    """The warnings about the spec."""


class Served(Resource):
    id: str
    step: int


class PredictionList(Resource):
    job: str
    checkpoint: Served
    session: str
    """The id of the serving session, a job that holds one slot until it has had no request for a while."""
    data: tuple[Json, ...]
    """One result for each input, in the order of the inputs."""
