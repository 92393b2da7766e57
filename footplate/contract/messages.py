"""The messages between service and worker: JSON with a `type`. Unknown fields are ignored, so N works with N±1.

Worker to control (list `keys.INBOX`): Claim, AttemptBeat, NodeBeat.
Control to worker (lists `keys.reply`, `keys.node_reply`): Grant, Denial, AttemptReply, NodeReply.
Events travel separately, as EventBatch in the field "batch" of an entry of the stream `keys.EVENTS`.
Every message may be lost, repeated or late. The worker repeats until answered, and a late sender gets an answer too.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import ConfigDict, Field, TypeAdapter

from footplate.contract.fields import InternalMessage
from footplate.contract.ids import CheckpointId, ClaimId, Fence, JobId, NodeId
from footplate.contract.lifecycle import StopMode

PROTOCOL = 2
"""Raised by an incompatible change. Control serves PROTOCOL and PROTOCOL - 1, and refuses all others with a reason."""
SHARES_JOBS = 2
"""The first protocol with jobs on several nodes. A node with an older one would train alone."""


class Message(InternalMessage):
    model_config = ConfigDict(validate_by_name=True, serialize_by_alias=True)
    """An alias is the name on the wire, which other versions know."""

    protocol: int = PROTOCOL


class Gpu(InternalMessage):
    uuid: str
    name: str
    memory_mb: int = 0
    capability: tuple[int, int] = (0, 0)
    """CUDA compute capability: (7, 0) Volta has fp16, (8, 0) Ampere has bf16."""


class Claim(Message):
    """A request to run this attempt. A repeated claim is granted again."""

    type: Literal["claim"] = "claim"
    job: JobId
    attempt: int
    fence: Fence
    claim: ClaimId
    node: NodeId
    boot: str
    rendezvous: str | None = Field(default=None, alias="meets_at")
    """The address (host:port) on this node for the rendezvous of a job's ranks, already bound. Source 0's is used."""


class AttemptBeat(Message):
    """A heartbeat of an attempt's supervisor, sent at every interval and at once after a change."""

    type: Literal["attempt_beat"] = "attempt_beat"
    job: JobId
    attempt: int
    fence: Fence
    claim: ClaimId
    source: int = 0
    number: int
    """The beat's number, which rises. Only a *new* number extends the lease."""
    journaled: int = 0
    """The last seq in the journal on the worker's disk."""
    last_command: int = Field(default=0, alias="deeds")
    """The number of the newest command that was sent to training."""


class RunningAttempt(InternalMessage):
    job: JobId
    attempt: int
    fence: Fence
    claim: ClaimId


BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class FileRoot(InternalMessage):
    """The folder that data:// or models:// stands for on a node."""

    path: str
    anchor: str
    """The folder itself, or the nearest one above it that existed when the node started."""
    device: int
    inode: int
    """Inode of the anchor. A process that finds both there sees the same folder."""

    @classmethod
    def at(cls, path: Path) -> Self:
        anchor = next(folder for folder in (path, *path.parents) if folder.is_dir())
        about = anchor.stat()
        return cls(path=str(path), anchor=str(anchor), device=about.st_dev, inode=about.st_ino)


class FileRoots(InternalMessage):
    """The folders in which a node looks for the files that specs name."""

    machine: str
    """The kernel's boot id, because devices and inodes mean nothing on another machine."""
    data: FileRoot
    models: FileRoot


class NodeBeat(Message):
    """A heartbeat of a node's parent process: its slots, GPUs, catalogue and running attempts."""

    type: Literal["node_beat"] = "node_beat"
    node: NodeId
    boot: str
    """The id of this start of the node. It sorts after those of earlier starts."""
    number: int
    name: str
    pool: str = "default"
    slots: int
    gpus: list[Gpu] = Field(default_factory=list)
    draining: bool = False
    consuming: bool = True
    """True if the node's canary came back through its own queue. A node that takes no messages gets no work."""
    store_ok: bool = True
    """True if the node could read the service's probe file in the artifact store, and write beside it."""
    trouble: str | None = None
    """The reason for which the node can do no work now, as a sentence. None if it can."""
    exposed: str | None = None
    """The reason for which training has root's rights on the node, as a sentence. None if it has not."""
    roots: FileRoots | None = None
    catalogue_hash: str | None = None
    catalogue: dict[str, Any] | None = None
    """Sent until a reply names its hash as known."""
    versions: dict[str, str] = Field(default_factory=dict)
    running: list[RunningAttempt] = Field(default_factory=list)
    dead: list[RunningAttempt] = Field(default_factory=list)
    """Attempts whose supervisor died without a report, and whose events have all arrived. Their leases end at once."""
    unsent: int = 0
    """Unacknowledged events of dead attempts in this node's journals."""
    unreadable: int = 0
    """Journals that belong to no known attempt. They are set aside in this node's folder, for a person to look at."""


class CheckpointOffer(InternalMessage):
    """A checkpoint to continue from if it verifies. `path` is relative to the artifact store's root."""

    id: CheckpointId
    step: int
    path: str
    manifest_sha256: str
    was_corrupt: bool = False
    """True if an earlier attempt could not verify it. It is tried again, because its disk may be readable now."""
    of: JobId | None = None
    """The other job that wrote it, if this job has no checkpoint of its own yet. None means this job."""


class Command(InternalMessage):
    """A live command to the running loop, carried out once.

    If a later attempt repeats the same steps, it repeats the command's changes and evaluation, too.
    """

    no: int
    """The number of the event that requested it. It rises with every command."""
    save: bool = False
    evaluate: bool = False
    set: dict[str, Any] = Field(default_factory=dict)
    """Arguments of training by name."""
    step: int | None = None
    """The step after which the command was carried out. None if it was not yet."""


class Grant(Message):
    """The claim is accepted: only this supervisor runs the attempt. Carries all that the attempt needs."""

    type: Literal["grant"] = "grant"
    job: JobId
    attempt: int
    fence: Fence
    claim: ClaimId
    source: int = 0
    """The index of this node among the attempt's nodes."""
    nodes: int = 1
    """The number of the attempt's nodes."""
    rendezvous: str | None = Field(default=None, alias="meets_at")
    """The address (host:port) where the ranks of several nodes meet. None if not every node has claimed yet, and
    training must not start before. Also None if there is only one node."""
    spec: dict[str, Any]
    gpus: list[str] = Field(default_factory=list)
    """UUIDs of the GPUs that the attempt may see."""
    checkpoints: list[CheckpointOffer] = Field(default_factory=list)
    """The checkpoints to continue from, newest first. If empty, the job starts at step 0."""
    commands: list[Command] = Field(default_factory=list, alias="deeds")
    """The job's commands so far that still count, oldest first."""
    watermark: int = 0
    lease_seconds: float
    beat_seconds: float
    time_left_seconds: float | None = None
    traceparent: str | None = None
    """The attempt's own span, in the trace of the job's POST. None if the POST had no trace."""
    project: str | None = None
    """The project that the job belongs to. None from a service of a version without this field."""


class Denial(Message):
    """The claim is refused. The worker drops its message, because another node runs the attempt or it was withdrawn."""

    type: Literal["denial"] = "denial"
    claim: ClaimId
    reason: str


class Stop(InternalMessage):
    """A request to stop: the cause, the mode, and the time after which the worker kills training."""

    because: Literal["cancel", "pause", "drain", "time_limit", "peer"]
    """`peer` means that the job's part on another node has failed."""
    mode: StopMode
    within_seconds: float


class AttemptReply(Message):
    """The answer to a beat. Also sent without a beat when a stop or a command was requested."""

    type: Literal["attempt_reply"] = "attempt_reply"
    claim: ClaimId
    number: int = 0
    superseded: bool = False
    """True if the job has a newer fence. The supervisor stops at once and reports nothing more."""
    rendezvous: str | None = Field(default=None, alias="meets_at")
    """The same as in the grant, once every node has claimed."""
    stop: Stop | None = None
    commands: list[Command] = Field(default_factory=list, alias="deeds")
    """Commands for the loop that are not carried out yet, oldest first."""
    watermark: int = 0
    stored_step: int | None = Field(default=None, ge=0, lt=2**63)
    """The newest checkpoint of this attempt in SQL. Older ones may be deleted. The watermark is not enough for that,
    because events of a superseded attempt are acknowledged without being stored."""
    held_steps: list[Annotated[int, Field(ge=0, lt=2**63)]] | None = None
    """Checkpoints of this attempt that its limits must not delete, because other jobs start from them. None if the
    service did not look."""
    closed: bool = False
    """True if the service has all events of this attempt, so that the journal may be deleted."""


class NodeReply(Message):
    type: Literal["node_reply"] = "node_reply"
    number: int
    catalogue_known: str | None = None
    drain: bool = False
    refused: str | None = None
    """The reason for which this node gets no work: another protocol, an identity in use, an unreadable store."""


class EventBatch(Message):
    """One entry of the event stream: consecutive events of one source. `events` is a JSON array of WorkerEvents."""

    type: Literal["events"] = "events"
    job: JobId
    attempt: int
    fence: Fence
    claim: ClaimId
    source: int
    first: int = 1
    """The oldest seq that the journal still has. Older events that are not stored are lost."""
    events: list[dict[str, Any]]


ToControl = Annotated[Claim | AttemptBeat | NodeBeat, Field(discriminator="type")]
ToAttempt = Annotated[Grant | Denial | AttemptReply, Field(discriminator="type")]

TO_CONTROL: TypeAdapter[Claim | AttemptBeat | NodeBeat] = TypeAdapter(ToControl)
TO_ATTEMPT: TypeAdapter[Grant | Denial | AttemptReply] = TypeAdapter(ToAttempt)
