"""What statements return: frozen rows. JSON stays the text that SQL holds until somebody needs its inside.

Times are integer milliseconds since 1970, UTC.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from footplate.contract.ids import CheckpointId, ClaimId, DeliveryId, Fence, FileId, JobId, KeyId, NodeId, WebhookId
from footplate.contract.layout import pinned_folder
from footplate.contract.lifecycle import Desired, JobState, Reason, StopMode


@dataclass(frozen=True, slots=True)
class JobRow:
    id: JobId
    project: str
    name: str | None
    tags: str
    """JSON list."""
    job_metadata: str
    """JSON object."""
    priority: int
    state: JobState
    reason: Reason
    message: str | None
    """The reason in a sentence, where there is more to say."""
    desired: Desired
    version: int
    """The ETag: moves with PATCH and state, not with progress."""
    attempt: int
    """The newest attempt's number; 0 before the first."""
    fence: Fence
    stop_mode: StopMode | None
    stop_deadline: int | None
    """When a stopping attempt is killed."""
    not_before: int | None
    """When a retry may start."""
    spent: int
    """Failures and losses since submit or resume."""
    stuck: int
    """Failures and losses in a row without a new checkpoint."""
    running_ms: int
    """Running time over all closed attempts."""
    time_limit_ms: int | None
    needs: str
    """JSON of place.Needs."""
    last_no: int
    """The newest event's number."""
    created_at: int
    updated_at: int
    queued_at: int
    started_at: int | None
    """When it first ran."""
    finished_at: int | None
    progress: str | None
    """JSON: step, max_steps, epoch, eta_s."""
    metrics: str | None
    """JSON: the latest value by name."""
    result: str | None
    """JSON: final and best."""
    error: str | None
    """JSON: code, message, hint, rank, traceback."""
    outputs: str | None
    """Path of the kept outputs, relative to the artifact store."""
    spec: str
    """JSON: the effective spec."""
    starts_from: CheckpointId | None = None
    """The checkpoint of another job that its first attempt continues from, and every one until it has its own."""
    warnings: str | None = None
    """JSON list: the warnings that its submission was answered with."""


@dataclass(frozen=True, slots=True)
class AttemptRow:
    job_id: JobId
    attempt: int
    fence: Fence
    placed_at: int
    claimed_at: int | None
    running_at: int | None
    ended_at: int | None
    """None: open."""
    ending: str | None
    """finished, stopped, failed, lost, or withdrawn before it started."""
    reason: str | None
    error: str | None
    result: str | None
    running_ms: int


@dataclass(frozen=True, slots=True)
class SourceRow:
    """One node's part in an attempt: its claim, its GPUs, and how far its journal has come."""

    job_id: JobId
    attempt: int
    source: int
    node: NodeId
    boot: str
    slots: int
    gpus: str
    """JSON list of UUIDs."""
    claim: ClaimId | None
    rung_at: int | None
    claimed_at: int | None
    running_at: int | None
    watermark: int
    """The highest seq that is stored; everything below it is, too."""
    ended_at: int | None
    done: str | None
    """JSON of its DoneData."""
    meets_at: str | None = None
    """host:port that its claim has bound, for the ranks of all nodes to meet at."""


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
    step: int | None
    epoch: float | None
    data: str
    """JSON object."""

    def as_json(self) -> str:
        """The envelope, by formatting: a reader with 100,000 events parses none of them."""
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
    step: int
    no: int
    """The event that announced it."""
    path: str
    status: str
    """committed, corrupt, deleting or deleted."""
    bytes: int
    files: int
    manifest_sha256: str
    metrics: str
    is_best: bool
    score: float | None
    """The metric that ranks it, where it was evaluated at its step."""
    created_at: int
    pinned_from: str | None = None
    """Of a pinned one: where it lay before, and may lie still. None: it is not pinned."""

    @property
    def is_pinned(self) -> bool:
        return self.pinned_from is not None

    @property
    def lies_aside(self) -> bool:
        """Where pinned ones do: no training relies on it there."""
        return self.path == str(pinned_folder(self.job_id, self.id, self.step))


UNREADABLE_STORE = "it cannot read the service's artifact store"


@dataclass(frozen=True, slots=True)
class NodeRow:
    id: NodeId
    name: str
    boot: str
    pool: str
    slots: int
    gpus: str
    """JSON list of messages.Gpu."""
    lost: bool
    """Silent for longer than a lease."""
    draining: bool
    """It says that it is going away."""
    drain_requested: bool
    """An operator said so."""
    consuming: bool
    store_ok: bool
    trouble: str | None
    """Why it can do no work now, as it says itself."""
    exposed: str | None
    """Why training has root's rights there."""
    refused: str | None
    """Why it gets no work."""
    protocol: int
    catalogue_hash: str | None
    versions: str
    first_seen_at: int
    seen_at: int
    roots: str | None = None
    """JSON of FileRoots: where it looks for the files that specs name. None: its version does not announce that."""

    @property
    def is_staying(self) -> bool:
        """Up, and neither going away nor turned away."""
        return self._is_up and self.refused is None

    @property
    def is_turned_away(self) -> bool:
        return self._is_up and self.refused is not None

    @property
    def _is_up(self) -> bool:
        return not (self.lost or self.draining or self.drain_requested)

    @property
    def takes_work(self) -> bool:
        return self.is_staying and self.consuming and self.store_ok and self.trouble is None

    @property
    def why_not(self) -> str | None:
        """Why it gets no work, in a sentence. None: it does."""
        if self.takes_work:
            return None
        if self.lost:
            return "it is silent: its machine, its worker or its way to Redis is gone"
        if self.refused is not None:
            return self.refused
        if self.draining or self.drain_requested:
            return "it is draining"
        if self.trouble is not None:
            return self.trouble
        return UNREADABLE_STORE if not self.store_ok else "it does not consume its queue"


@dataclass(frozen=True, slots=True)
class DeadEventRow:
    id: int
    at: int
    reason: str
    raw: str


@dataclass(frozen=True, slots=True)
class IdempotencyRow:
    project: str
    key: str
    body_sha256: str
    job_id: JobId
    response: str | None
    created_at: int


@dataclass(frozen=True, slots=True)
class KeyRow:
    id: KeyId
    prefix: str
    """The first part of the key itself, which everyone may see: it names the key in logs."""
    hash: str
    """SHA-256 of the whole key."""
    name: str
    project: str
    """`*`: of every project."""
    scopes: str
    """JSON list."""
    created_at: int
    created_by: str | None
    expires_at: int | None
    last_used_at: int | None
    """To the minute."""


@dataclass(frozen=True, slots=True)
class TicketRow:
    hash: str
    key_id: KeyId | None
    """Whose it is; None: the bootstrap key's."""
    project: str
    expires_at: int


@dataclass(frozen=True, slots=True)
class WebhookRow:
    id: WebhookId
    project: str
    url: str
    secret: str
    """As its user has it: `whsec_` and base64."""
    states: str | None
    """JSON list of those that it wants to hear of. None: every one."""
    tags: str | None
    """JSON list: jobs with any of them. None: every job."""
    description: str | None
    created_at: int
    created_by: str | None
    failing_since: int | None
    """The first failure since the last success."""
    disabled_at: int | None
    """None: it is told."""
    disabled_why: str | None
    rests_until: int | None = None
    """One that fails is not tried before."""
    old_secret: str | None = None
    """What signs beside the secret until then."""
    old_until: int | None = None


@dataclass(frozen=True, slots=True)
class DeliveryRow:
    id: DeliveryId
    webhook_id: WebhookId
    type: str
    job_id: JobId | None
    body: str
    """JSON, as it is signed and sent."""
    created_at: int
    status: str
    """pending, delivered or failed."""
    tries: int
    due_at: int | None
    """When it is sent next. None: never again."""
    tried_at: int | None
    http_status: int | None
    """Of the last try. None: nobody answered."""
    answer: str | None
    """What the last answer said, cut short."""
    error: str | None
    """Why the last try was none."""


@dataclass(frozen=True, slots=True)
class BundleRow:
    project: str
    sha256: str
    bytes: int
    unpacked_bytes: int
    files: str
    """JSON list of [path, bytes]."""
    created_at: int

    @property
    def paths(self) -> list[str]:
        """Of its files, in order."""
        return [path for path, _ in json.loads(self.files)]


@dataclass(frozen=True, slots=True)
class FileRow:
    project: str
    id: FileId
    sha256: str
    bytes: int
    name: str
    """As it first came."""
    kind: str
    created_at: int
    created_by: str | None


@dataclass(frozen=True, slots=True)
class JobPage:
    rows: list[JobRow]
    next_cursor: str | None
    """None: this was the last page."""
    total_estimate: int


def loads(text: str | None) -> Any:
    """The inside of a JSON column; None stays None."""
    return None if text is None else json.loads(text)
