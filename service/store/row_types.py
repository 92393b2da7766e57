"""The frozen rows that statements return. Most of these classes also define the columns of a table (`tables.py`)."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Annotated, Any

from sqlalchemy import BigInteger, Text

from footplate.contract.ids import (
    CheckpointId,
    ClaimId,
    DeliveryId,
    Fence,
    FileId,
    JobId,
    KeyId,
    NodeId,
    PartId,
    UploadId,
    WebhookId,
)
from footplate.contract.layout import pinned_folder
from footplate.contract.lifecycle import Action, Desired, JobState, Reason, StopMode, actions
from service.store.times import text_of


def loads(text: str | None) -> Any:
    """Returns the content of a JSON column. None stays None."""
    if text is None:
        return None
    value = json.loads(text)
    if "\\ud" in text:
        # A worker's JSON may hold half a surrogate pair, which cannot be written as UTF-8 again.
        return json.loads(json.dumps(value, ensure_ascii=False).encode("utf-8", "replace"))
    return value


Words = Annotated[str, Text()]
"""A text of any length."""
Json = Annotated[str, Text(), loads]
"""JSON that was serialized once. It stays text until a caller needs its content, so that no driver parses it."""
Large = Annotated[int, BigInteger()]
Moment = Annotated[int, BigInteger(), text_of]
"""A time, in milliseconds since 1970 in UTC."""


NO_NEEDS = "null"
NO_FENCE = Fence(0)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRow:
    """A job. The default values are those of a new job."""

    id: JobId
    project: str
    name: str | None
    tags: Json
    """JSON list."""
    job_metadata: Json
    """JSON object: the metadata that the user gave."""
    priority: int
    state: JobState = JobState.QUEUED
    reason: Reason = Reason.SUBMITTED
    message: Words | None = None
    """A sentence with more details about the reason, if there are any."""
    desired: Desired = Desired.RUN
    version: int = 1
    """The ETag. It changes with PATCH and with the state, not with progress."""
    attempt: int = 0
    """The newest attempt's number, or 0 before the first attempt."""
    fence: Fence = NO_FENCE
    stop_mode: StopMode | None = None
    stop_deadline: Moment | None = None
    """The time at which a stopping attempt must have ended. Its training is killed before that."""
    not_before: Moment | None = None
    """The time from which a retry may start."""
    failed_attempts: int = 0
    """The number of attempts that failed or were lost since the job was submitted or resumed."""
    failed_without_checkpoint: int = 0
    """The number of attempts that failed or were lost in a row without a new checkpoint."""
    running_ms: Large = 0
    """The running time of all attempts that have ended."""
    time_limit_ms: Large | None
    needs: Json
    """JSON of `service.jobs.needs.Needs`, or NO_NEEDS if the job runs elsewhere."""
    last_no: int
    """The newest event's number."""
    created_at: Moment
    updated_at: Moment
    queued_at: Moment
    started_at: Moment | None = None
    """The time at which the job's first attempt began to train."""
    finished_at: Moment | None = None
    progress: Json | None = None
    """JSON: step, max_steps, epoch, eta_s."""
    metrics: Json | None = None
    """JSON object: the latest value of each metric."""
    result: Json | None = None
    """JSON object with the `final` and the `best` metrics."""
    error: Json | None = None
    """JSON: code, message, hint, rank, traceback."""
    outputs: Words | None = None
    """The path of the folder of outputs, relative to the artifact store."""
    spec: Json
    """JSON: the effective spec. `read_spec` of `stored_spec.py` reads its fields."""
    starts_from: CheckpointId | None = None
    """The checkpoint of another job from which this job starts, as long as it has no checkpoint of its own."""
    warnings: Json | None = None
    """JSON list of the warnings in the answer to the job's POST."""
    fine_tune: Json | None = None
    """JSON object of the fields of a fine-tuning request at /v1 that no spec has. None for jobs of other requests."""

    @property
    def runs_elsewhere(self) -> bool:
        """Returns True if no node holds the job, because other machines run it and only report here."""
        return self.needs == NO_NEEDS

    @property
    def actions(self) -> list[Action]:
        """The actions of users that the job's present state allows."""
        return [Action.DELETE] if self.runs_elsewhere else actions(self.state, self.desired)


@dataclass(frozen=True, slots=True)
class AttemptRow:
    job_id: JobId
    attempt: int
    fence: Fence
    placed_at: Moment
    claimed_at: Moment | None = None
    running_at: Moment | None = None
    ended_at: Moment | None = None
    """The time at which the attempt ended. None while it has not ended."""
    ending: str | None = None
    """The ending: finished, stopped, failed, lost, or withdrawn before any node claimed the attempt."""
    reason: str | None = None
    error: Json | None = None
    result: Json | None = None
    running_ms: Large = 0


@dataclass(frozen=True, slots=True)
class SourceRow:
    """One node's share of an attempt: its claim, its GPUs, and how many of its events are stored."""

    job_id: JobId
    attempt: int
    source: int
    node: NodeId
    boot: str
    slots: int
    gpus: Json
    """JSON list of UUIDs."""
    claim: ClaimId | None = None
    sent_at: Moment | None = None
    """The time at which its start message was last sent to its node."""
    claimed_at: Moment | None = None
    running_at: Moment | None = None
    watermark: int = 0
    """The `seq` up to which all events of this source are stored."""
    ended_at: Moment | None = None
    done: Json | None = None
    """JSON of the DoneData with which the node reported the end. None before."""
    rendezvous: str | None = None
    """The address (host:port) that this node has reserved for the rendezvous of all ranks, if it is the first node."""


@dataclass(frozen=True, slots=True)
class EventRow:
    job_id: JobId
    no: int
    attempt: int
    source: int
    seq: int
    rank: int
    kind: str
    at: str
    step: Large | None
    epoch: float | None
    data: Json
    """JSON object: the event's data."""

    def as_json(self) -> str:
        """Returns the event as JSON without parsing its data, so that 100,000 events can be sent quickly."""
        step = "null" if self.step is None else self.step
        epoch = "null" if self.epoch is None else repr(self.epoch)
        return (
            f'{{"v":1,"job":"{self.job_id}","no":{self.no},"attempt":{self.attempt},"source":{self.source},'
            f'"seq":{self.seq},"rank":{self.rank},"kind":"{self.kind}","at":"{self.at}","step":{step},'
            f'"epoch":{epoch},"data":{self.data}}}'
        )


@dataclass(frozen=True, slots=True)
class CheckpointRow:
    id: CheckpointId
    job_id: JobId
    attempt: int
    step: Large
    no: int
    """The number of the event that reported the checkpoint."""
    path: Words
    status: str
    """The status: committed, corrupt, deleting or deleted."""
    bytes: Large
    files: int
    manifest_sha256: str
    metrics: Json
    is_best: bool
    score: float | None
    """The value of metric_for_best_model at the checkpoint's step, if an evaluation ran at this step."""
    created_at: Moment
    pinned_from: Words | None = None
    """The path before the checkpoint was pinned, at which its files may still exist. None if it is not pinned."""

    @property
    def is_pinned(self) -> bool:
        return self.pinned_from is not None

    @property
    def is_in_pinned_folder(self) -> bool:
        """Returns True if the files are in the folder for pinned checkpoints, on which no training relies."""
        return self.path == str(pinned_folder(self.job_id, self.id, self.step))


UNREADABLE_STORE = "it cannot read the service's artifact store"


@dataclass(frozen=True, slots=True)
class NodeRow:
    id: NodeId
    name: str
    boot: str
    pool: str
    slots: int
    gpus: Json
    """JSON list of messages.Gpu."""
    lost: bool
    """True if no heartbeat has come from the node for longer than a lease."""
    draining: bool
    """True if the node reports that a signal drains it until its end."""
    drain_requested: bool
    """True if an operator has requested a drain."""
    consuming: bool
    store_ok: bool
    trouble: Words | None
    """The reason for which the node reports that it can do no work now."""
    exposed: Words | None
    """The reason for which training has root's rights on this node, if it has them."""
    refused: Words | None
    """The reason for which control gives the node no work, such as its protocol. None if control does not refuse it."""
    protocol: int
    catalogue_hash: str | None
    versions: Json
    first_seen_at: Moment
    seen_at: Moment
    roots: Json | None = None
    """JSON of FileRoots, the folders in which the node looks for files. None if its version does not announce them."""

    @property
    def is_staying(self) -> bool:
        """Returns True if the node is up, does not drain and is not refused."""
        return self.is_up and self.refused is None

    @property
    def has_left(self) -> bool:
        """Returns True if the node was drained and has stopped since."""
        return self.lost and (self.draining or self.drain_requested)

    @property
    def is_up(self) -> bool:
        return not (self.lost or self.draining or self.drain_requested)

    @property
    def takes_work(self) -> bool:
        return self.is_staying and self.consuming and self.store_ok and self.trouble is None

    @property
    def why_not(self) -> str | None:
        """Returns a sentence with the reason for which the node gets no work, or None if it gets work."""
        if self.takes_work:
            return None
        if self.lost:
            return "it sends no heartbeat: its machine, its worker or its connection to Redis is down"
        if self.refused is not None:
            return self.refused
        if self.draining or self.drain_requested:
            return "it is draining"
        if self.trouble is not None:
            return self.trouble
        return UNREADABLE_STORE if not self.store_ok else "its worker takes no messages from its Celery queue"


@dataclass(frozen=True, slots=True)
class DeadEventRow:
    id: int
    at: Moment
    reason: Words
    raw: Words


@dataclass(frozen=True, slots=True)
class IdempotencyRow:
    project: str
    key: str
    body_sha256: str
    job_id: JobId
    response: Json | None
    created_at: Moment


@dataclass(frozen=True, slots=True)
class KeyRow:
    id: KeyId
    prefix: str
    """The first part of the key, which is not secret. Logs name the key by it."""
    hash: str
    """SHA-256 of the whole key."""
    name: str
    project: str
    """The project, or `*` for every project."""
    scopes: Json
    """JSON list."""
    created_at: Moment
    created_by: str | None
    expires_at: Moment | None
    last_used_at: Moment | None = None
    """The time of last use, to the minute."""


@dataclass(frozen=True, slots=True)
class TicketRow:
    hash: str
    key_id: KeyId | None
    """The key with which the ticket was requested. None for the bootstrap key."""
    project: str
    expires_at: Moment


@dataclass(frozen=True, slots=True)
class WebhookRow:
    id: WebhookId
    project: str
    url: Words
    secret: str
    """The secret in the form that the user gets: `whsec_` and base64."""
    states: Json | None
    """JSON list of the states to deliver. None for every state."""
    tags: Json | None
    """JSON list of tags. Jobs with any of them are delivered. None for every job."""
    description: Words | None
    created_at: Moment
    created_by: str | None
    failing_since: Moment | None = None
    """The time of the first failed delivery since the last successful one. None if the last delivery succeeded."""
    disabled_at: Moment | None = None
    """The time at which the webhook was disabled. None if it is enabled."""
    disabled_why: Words | None = None
    rests_until: Moment | None = None
    """The time before which a failing webhook is not tried again."""
    old_secret: str | None = None
    """The secret that also signs until `old_until`."""
    old_until: Moment | None = None
    format: str = "footplate"
    """The format of the deliveries: footplate or openai."""


@dataclass(frozen=True, slots=True)
class DeliveryRow:
    id: DeliveryId
    webhook_id: WebhookId
    type: str
    job_id: JobId | None
    body: Json
    """JSON, as it is signed and sent."""
    created_at: Moment
    status: str
    """The status: pending, delivered or failed."""
    tries: int
    due_at: Moment | None
    """The time of the next try. None if there is no further try."""
    tried_at: Moment | None = None
    http_status: int | None = None
    """The HTTP status of the answer to the last try. None if no answer came."""
    answer: Words | None = None
    """The beginning of the body of the last answer."""
    error: Words | None = None
    """The reason for which the last try failed. None if it succeeded."""


@dataclass(frozen=True, slots=True)
class BundleRow:
    project: str
    sha256: str
    bytes: Large
    unpacked_bytes: Large
    files: Json
    """JSON list of [path, bytes]."""
    created_at: Moment


@dataclass(frozen=True, slots=True)
class FileRow:
    project: str
    id: FileId
    sha256: str
    bytes: Large
    name: Words
    """The name under which the content was first uploaded."""
    kind: str
    created_at: Moment
    created_by: str | None
    rows: Large | None
    """The number of rows. None: the file was uploaded before rows were checked."""
    bad_rows: Large | None
    report: Json | None
    """JSON of the RowReport."""


@dataclass(frozen=True, slots=True)
class UploadRow:
    """An upload in parts, which becomes a file once all parts have arrived."""

    id: UploadId
    project: str
    name: Words
    bytes: Large
    """The number of bytes of all parts, as the request that created the upload announced it."""
    created_at: Moment
    status: str
    """The status: pending, completed or cancelled."""
    file_id: FileId | None = None
    """The file that was made of the parts. None before the upload is complete."""


@dataclass(frozen=True, slots=True)
class UploadPartRow:
    id: PartId
    upload_id: UploadId
    bytes: Large
    created_at: Moment


@dataclass(frozen=True, slots=True)
class BucketRow:
    job_id: JobId
    attempt: int
    name: str
    level: int
    place: int
    """The number of buckets of the same level before this one."""
    reaches: Large | None
    """The highest step of the bucket's points, by which a query finds the first point that a later attempt repeated."""
    body: Json
    nos: Json | None
    """JSON: the numbers of the events of the bucket's points. Only buckets of the lowest level have it."""


@dataclass(frozen=True, slots=True)
class CurveRow:
    job_id: JobId
    attempt: int
    name: str
    body: Json
    until: Large | None = None
    """The last step that counts, because a later attempt continues there. None: all steps count."""


@dataclass(frozen=True, slots=True)
class JobPage:
    rows: list[JobRow]
    next_cursor: str | None
    """The cursor of the next page. None on the last page."""
    total_estimate: int
