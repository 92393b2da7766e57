"""What the routes take and answer, as models: for /openapi.json, and for the tests that hold real answers against them.

The routes write JSON by hand, because it is in SQL as text already; nothing here is on a request's way.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from contract.events import Failure, Kind
from contract.lifecycle import Action, Desired, JobState, Reason

Json = dict[str, Any]


class Shape(BaseModel):
    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)


class Progress(Shape):
    step: int
    max_steps: int
    epoch: float
    eta_s: float | None = None


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


class Event(Shape):
    v: Literal[1]
    job: str
    no: int
    """Dense per job; the cursor."""
    attempt: int
    source: int
    seq: int
    rank: int
    kind: Kind
    at: str
    step: int | None
    epoch: float | None
    data: Json


class EventList(Shape):
    data: list[Event]
    next_cursor: str | None
    """What `after` takes to read on; null: there is no more now."""
    last: int
    """How far this answer goes. Poll with after=last."""


class Metric(BaseModel):
    model_config = ConfigDict(extra="allow")

    no: int
    step: int | None
    epoch: float | None


class MetricList(Shape):
    data: list[Metric]
    next_cursor: str | None
    last: int


class SeenMetric(Shape):
    value: float | str
    """"NaN", "Infinity" and "-Infinity" are strings."""
    no: int
    step: int | None
    epoch: float | None
    at: str
    attempt: int
    repeated: bool
    """A later attempt told of this step again."""


class MetricSummary(Shape):
    name: str
    count: int
    not_finite: int
    """Points that are no finite number: they are neither least nor most."""
    last: SeenMetric
    min: SeenMetric | None
    max: SeenMetric | None


class MetricSummaryList(Shape):
    data: list[MetricSummary]
    next_cursor: str | None


class SeriesAttempt(Shape):
    attempt: int
    first: int
    """The index in x and y of its first point."""


class Series(Shape):
    job: str
    name: str
    count: int
    """Points that the job has told."""
    left_out: int
    """Those that a later attempt repeats, and that are not shown therefore."""
    exact: bool
    """Every other point is here; else some of each stretch, its least and its most among them."""
    attempts: list[SeriesAttempt]
    x: list[int | float | str]
    y: list[float | str]


class SeriesList(Shape):
    x: Literal["step", "time", "epoch"]
    data: list[Series]
    next_cursor: str | None


class Line(Shape):
    no: int
    at: str
    attempt: int
    rank: int
    stream: str
    text: str


class LineList(Shape):
    data: list[Line]
    next_cursor: str | None
    """What `after` takes to look on; there may be one although this page is empty."""
    last: int


class AttemptNode(Shape):
    id: str
    name: str
    slots: int
    gpus: list[str]
    events: int


class Attempt(Shape):
    attempt: int
    ending: str | None
    """finished, stopped, failed, lost or withdrawn; null: it is open."""
    reason: str | None
    placed_at: str
    claimed_at: str | None
    running_at: str | None
    ended_at: str | None
    running_s: float
    error: Failure | None
    result: Json | None
    nodes: list[AttemptNode]


class AttemptList(Shape):
    data: list[Attempt]
    next_cursor: str | None


class Checkpoint(Shape):
    id: str
    attempt: int
    step: int
    no: int
    status: str
    """committed, corrupt, deleting or deleted."""
    bytes: int
    files: int
    path: str
    manifest_sha256: str
    metrics: Json
    is_best: bool
    pinned: bool
    """It stays, whatever the job's limits say."""
    created_at: str


class CheckpointList(Shape):
    data: list[Checkpoint]
    next_cursor: str | None


class DeletedCheckpoint(Checkpoint):
    frees_bytes: int
    """Once its folder is gone, which is soon. 0: it was going already."""


class CheckpointFile(Shape):
    path: str
    bytes: int
    sha256: str
    """Of what was written when the checkpoint was committed."""


class CheckpointFileList(Shape):
    checkpoint: str
    """Its id: what `latest` and `best` meant."""
    data: list[CheckpointFile]
    next_cursor: str | None


class Output(Shape):
    path: str
    bytes: int
    modified_at: str


class OutputList(Shape):
    data: list[Output]
    next_cursor: str | None


class BundleFile(Shape):
    path: str
    bytes: int


class Bundle(Shape):
    sha256: str
    """What a spec's `code.bundle` says."""
    bytes: int
    unpacked_bytes: int
    files: list[BundleFile]
    created_at: str


class BundleList(Shape):
    data: list[Bundle]
    next_cursor: str | None


class File(Shape):
    id: str
    """What a spec's data says."""
    name: str
    """As it first came."""
    kind: Literal["jsonl", "csv", "tsv", "parquet"]
    bytes: int
    sha256: str
    created_at: str
    created_by: str | None


class FileList(Shape):
    data: list[File]
    next_cursor: str | None


class Node(Shape):
    id: str
    name: str
    state: Literal["up", "waiting", "draining", "lost"]
    takes_work: bool
    message: str | None
    """Why it gets no work now."""
    refused: str | None
    """Why it will get none as it is: its version, or a GPU that another node announces."""
    pool: str
    slots: int
    slots_used: int
    gpus: list[Json]
    jobs: list[str]
    versions: Json
    catalogue_hash: str | None
    actions: list[str]
    first_seen_at: str
    seen_at: str


class NodeList(Shape):
    data: list[Node]
    next_cursor: str | None


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
    """From 1, among all that wait for its pool; null while it may not start yet."""
    ahead: Ahead
    """Whose jobs are tried before it. A smaller one behind it may still go first, where it leaves nothing unused."""
    reason: Reason
    message: str | None
    queued_at: str
    waited_s: float
    starts_after: str | None
    """It may not start before: the pause before a retry."""


class Queue(Shape):
    data: list[QueuedJob]
    next_cursor: str | None
    waiting: Ahead
    """How many wait in all."""


class Placement(Shape):
    waits: bool
    reason: str
    node: str | None
    message: str


class Validation(Shape):
    valid: Literal[True]
    spec: Json
    """The effective spec, with every default."""
    steps: int | None
    """Optimizer steps, where the spec says them; else known once the data is."""
    parameters: int | None
    """Where known."""
    placement: Placement
    """Where it would be placed now, or why it would wait."""


class ProblemItem(Shape):
    pointer: str
    """RFC 6901, into the body; below /query for query parameters."""
    code: str
    detail: str
    hint: str | None = None


class ProblemDocument(BaseModel):
    model_config = ConfigDict(extra="allow", use_attribute_docstrings=True)

    type: str
    title: str
    status: int
    detail: str
    instance: str
    code: str
    """Stable: programs may compare it."""
    request_id: str
    errors: list[ProblemItem]
    hint: str | None = None
    state: JobState | None = None
    """With 409: the job's state,"""
    allowed: list[Action] | None = None
    """and what it allows."""


class Health(Shape):
    status: Literal["ok", "degraded", "unavailable"]
    degraded: list[str] = Field(default_factory=list)
    details: Json = Field(default_factory=dict)


class Ticket(Shape):
    ticket: str
    expires_in_s: int


class Key(Shape):
    id: str
    prefix: str
    """How the key begins: enough to tell it from others, and no more."""
    name: str
    project: str
    scopes: list[str]
    created_at: str
    created_by: str | None
    expires_at: str | None
    last_used_at: str | None
    """To the minute."""


class KeyList(Shape):
    data: list[Key]
    next_cursor: str | None


class CreatedKey(Key):
    key: str
    """The key itself. It is kept as a hash, so this is the only time that anybody sees it."""


class Webhook(Shape):
    id: str
    project: str
    url: str
    states: list[JobState] | None
    """null: every state."""
    tags: list[str] | None
    """null: every job."""
    description: str | None
    enabled: bool
    disabled_at: str | None
    disabled_why: str | None
    """by hand; because it answered 410; or because nothing could be delivered for five days, or for so long that more
    than 10,000 deliveries waited."""
    failing_since: str | None
    """The first failure since the last success. null: it works, as far as anybody has seen."""
    old_secret_until: str | None
    """How long the secret before the last change signs as well. null: there was no change, or with no overlap."""
    created_at: str
    created_by: str | None


class WebhookList(Shape):
    data: list[Webhook]
    next_cursor: str | None


class CreatedWebhook(Webhook):
    secret: str
    """What its deliveries are signed with. It is not shown again."""


class Delivery(Shape):
    id: str
    """Its `webhook-id`, the same at every try."""
    type: str
    job: str | None
    """null: a ping."""
    status: Literal["pending", "delivered", "failed"]
    tries: int
    created_at: str
    tried_at: str | None
    next_try_at: str | None
    """null: there is none any more."""
    http_status: int | None
    """Of the last try. null: nobody answered."""
    answer: str | None
    """What the last answer said, cut after 500 characters."""
    error: str | None
    """Why the last try failed."""
    body: Json
    """What it says."""


class DeliveryList(Shape):
    data: list[Delivery]
    next_cursor: str | None


def answers(
    model: type[BaseModel], status: int = 200, description: str = "", *, also: str = "", fails: tuple[int, ...] = ()
) -> Json:
    """For a route's decorator: what it answers when all is well, as JSON and as another type where there is one.
    Problems are added to every route alike; `fails` are those that one has beyond what its address says."""
    answer: Json = {"model": model, "description": description or model.__name__}
    if also:
        answer["content"] = {also: {"schema": {"type": "string"}}}
    return {"responses": {status: answer, **{one: {} for one in fails}}}


def takes(model: type[BaseModel], *, required: bool = False) -> Json:
    """For a route's decorator: the body that it reads itself."""
    schema = model.model_json_schema()
    content = {"application/json": {"schema": _inlined(schema, schema.pop("$defs", {}))}}
    return {"openapi_extra": {"requestBody": {"required": required, "content": content}}}


def _inlined(value: Any, definitions: Json) -> Any:
    """Small schemas with their definitions in place: a route's own body has no others to share them with."""
    if isinstance(value, dict):
        if "$ref" in value:
            return _inlined(definitions[value["$ref"].rpartition("/")[2]], definitions)
        return {key: _inlined(item, definitions) for key, item in value.items()}
    return [_inlined(item, definitions) for item in value] if isinstance(value, list) else value
