"""What the service answers, as frozen models. Fields that a newer service adds are ignored, and words that it adds to
a list of words (a state, a reason) are passed on as they are: a client of yesterday reads the service of tomorrow."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from footplate.contract.events import Event as Event
from footplate.contract.events import Failure as Failure

SUCCEEDED, FAILED, CANCELLED = "succeeded", "failed", "cancelled"


class Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore", defer_build=True)


class Progress(Model):
    step: int
    max_steps: int
    epoch: float
    eta_s: float | None = None


class Outcome(Model):
    """What became of one job of many that were asked the same."""

    job: str
    state: str | None = None
    """As it is then; None: there is none."""
    error: dict[str, Any] | None = None
    """Why not: status, code, detail, hint. None: it was done, or held already."""


class Change(Model):
    """A value of a spec that a fork has changed."""

    pointer: str
    old: Any = Field(default=None, alias="from")
    new: Any = Field(default=None, alias="to")


class Inexact(Model):
    pointer: str
    detail: str


class ForkPoint(Model):
    id: str
    step: int


class Fork(Model):
    """Where a forked job comes from, and what differs."""

    job: str
    checkpoint: ForkPoint
    mode: str
    changes: tuple[Change, ...] = ()
    exact: bool
    """Whether it goes on as the other job would have."""
    breaks_exactness: tuple[Inexact, ...] = ()
    """Why not, value by value."""


class SpecWarning(Model):
    """One thing about a spec that was accepted and that you may want to know."""

    code: str
    """`older_name`, `no_loss_shown`, or one that a newer service adds."""
    pointer: str
    """Into the spec that was sent."""
    detail: str


class JobInfo(Model):
    """A job as it stood when the service was asked."""

    id: str
    name: str | None = None
    project: str = "default"
    tags: tuple[str, ...] = ()
    metadata: dict[str, Any] = Field(default_factory=dict)
    priority: int = 0
    state: str
    reason: str
    message: str | None = None
    """The reason in a sentence, where there is more to say."""
    desired: str = "run"
    actions: tuple[str, ...] = ()
    """What would change something now."""
    attempt: int = 0
    node: str | None = None
    nodes: tuple[str, ...] = ()
    version: int = 0
    last_no: int = 0
    """The newest event's number: a cursor to follow from."""
    created_at: str = ""
    updated_at: str = ""
    queued_at: str = ""
    started_at: str | None = None
    finished_at: str | None = None
    running_s: float = 0.0
    progress: Progress | None = None
    metrics: dict[str, Any] = Field(default_factory=dict)
    """The latest value by name."""
    result: dict[str, Any] | None = None
    """Final and best."""
    error: Failure | None = None
    warnings: tuple[SpecWarning, ...] = ()
    """What you may want to know about a spec that was accepted."""
    fork: Fork | None = None
    """Where it comes from: only in what `fork` answers, and gone when the job is asked for again."""

    @property
    def has_ended(self) -> bool:
        """It succeeded, failed or was cancelled. A paused job has not ended."""
        return self.state in (SUCCEEDED, FAILED, CANCELLED)


class Attempt(Model):
    attempt: int
    ending: str | None = None
    reason: str | None = None
    placed_at: str | None = None
    claimed_at: str | None = None
    running_at: str | None = None
    ended_at: str | None = None
    running_s: float = 0.0
    error: Failure | None = None
    result: dict[str, Any] | None = None
    nodes: tuple[dict[str, Any], ...] = ()


class Checkpoint(Model):
    id: str
    attempt: int
    step: int
    no: int
    status: str
    """committed, corrupt, deleting or deleted."""
    bytes: int
    files: int
    path: str
    metrics: dict[str, Any] = Field(default_factory=dict)
    is_best: bool = False
    pinned: bool = False
    """It stays, whatever the job's limits say."""
    created_at: str = ""


class CheckpointFile(Model):
    path: str
    bytes: int
    sha256: str
    """Of what was written when the checkpoint was committed."""


class Seen(Model):
    """A value, and where it was."""

    value: float
    step: int | None = None
    epoch: float | None = None
    at: str = ""
    no: int = 0
    attempt: int = 0
    repeated: bool = False
    """A later attempt told of this step again."""


class MetricSummary(Model):
    name: str
    count: int
    not_finite: int = 0
    """Points that are no finite number: they are neither least nor most."""
    last: Seen
    min: Seen | None = None
    max: Seen | None = None


class Series(Model):
    """A curve: `plot(series.x, series.y)`."""

    job: str
    name: str
    count: int
    """Points that the job has told."""
    left_out: int = 0
    """Those that a later attempt repeats."""
    exact: bool = True
    """Every other point is here; else some of each stretch, its least and its most among them."""
    attempts: tuple[dict[str, Any], ...] = ()
    """Each with the index of its `first` point."""
    x: tuple[Any, ...] = ()
    y: tuple[float, ...] = ()


class Line(Model):
    """One that training printed."""

    no: int
    at: str = ""
    attempt: int = 0
    rank: int = 0
    stream: str = "stdout"
    text: str = ""


class QueuedJob(Model):
    job: str
    project: str = "default"
    name: str | None = None
    priority: int = 0
    pool: str = "default"
    needs: str = ""
    place: int | None = None
    """From 1, among all that wait for its pool; None while it may not start yet."""
    ahead: dict[str, int] = Field(default_factory=dict)
    """How many are tried before it: `yours` and `others`."""
    reason: str = ""
    message: str | None = None
    queued_at: str = ""
    waited_s: float = 0.0
    starts_after: str | None = None


class BundledFile(Model):
    path: str
    bytes: int


class Bundle(Model):
    """Code of your own that the service keeps; `sha256` is what a spec's `code` says."""

    sha256: str
    bytes: int
    unpacked_bytes: int
    files: tuple[BundledFile, ...] = ()
    created_at: str = ""


class UploadedFile(Model):
    """Rows that the service keeps; `id` is what a spec's data says."""

    id: str
    name: str
    kind: str
    bytes: int
    sha256: str
    created_at: str = ""


class Webhook(Model):
    """A URL that is told when jobs change their state."""

    id: str
    url: str
    project: str = "default"
    states: tuple[str, ...] | None = None
    """None: every state."""
    tags: tuple[str, ...] | None = None
    """None: every job."""
    description: str | None = None
    enabled: bool = True
    disabled_at: str | None = None
    disabled_why: str | None = None
    failing_since: str | None = None
    """The first failure since the last success."""
    old_secret_until: str | None = None
    """How long the secret before the last change signs as well."""
    created_at: str = ""
    created_by: str | None = None


class NewWebhook(Webhook):
    secret: str = Field(repr=False)
    """What its deliveries are signed with: shown once."""


class Delivery(Model):
    """What a webhook was told, and what came of it."""

    id: str
    """Its `webhook-id`."""
    type: str
    job: str | None = None
    """None: a ping."""
    status: str
    """pending, delivered or failed."""
    tries: int = 0
    created_at: str = ""
    tried_at: str | None = None
    next_try_at: str | None = None
    http_status: int | None = None
    answer: str | None = None
    error: str | None = None
    body: dict[str, Any] = Field(default_factory=dict)


class Key(Model):
    id: str
    prefix: str
    """How it begins."""
    name: str
    project: str
    scopes: tuple[str, ...] = ()
    created_at: str = ""
    created_by: str | None = None
    expires_at: str | None = None
    last_used_at: str | None = None


class NewKey(Key):
    key: str = Field(repr=False)
    """The key itself: shown once."""


class Output(Model):
    """One file that a job left behind."""

    path: str
    bytes: int
    modified_at: str = ""


class Node(Model):
    id: str
    name: str
    state: str
    takes_work: bool
    message: str | None = None
    """Why it gets no work now."""
    exposed: str | None = None
    """Why training, and so a bundle's code, has root's rights there."""
    pool: str = ""
    slots: int = 0
    slots_used: int = 0
    gpus: tuple[dict[str, Any], ...] = ()
    jobs: tuple[str, ...] = ()
    versions: dict[str, Any] = Field(default_factory=dict)
    seen_at: str = ""


class Component(Model):
    """Something that a spec may name."""

    name: str
    group: str
    summary: str = ""
    """One line: what it is."""
    args: dict[str, Any] = Field(default_factory=dict)
    """JSON Schema of its arguments."""


class Placement(Model):
    waits: bool
    reason: str
    node: str | None = None
    message: str


class Validation(Model):
    """What POST /jobs would say of a spec that is good."""

    spec: dict[str, Any]
    """The effective spec, with every default."""
    steps: int | None = None
    parameters: int | None = None
    """Where known."""
    placement: Placement
    warnings: tuple[SpecWarning, ...] = ()
    """What you may want to know about the spec."""


class Health(Model):
    status: str
    degraded: tuple[str, ...] = ()
    details: dict[str, str] = Field(default_factory=dict)
    """A sentence for each that is degraded."""
    clock_ahead_s: float | None = None
    """The service's clock before this machine's, to a second."""
