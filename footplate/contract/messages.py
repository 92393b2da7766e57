"""What service and worker say to each other. JSON, one `type` each; unknown fields are ignored, so N talks to N±1.

Worker to control (list `keys.INBOX`): Claim, AttemptBeat, NodeBeat.
Control to worker (lists `keys.reply`, `keys.node_reply`): Grant, Denial, AttemptReply, NodeReply.
Events travel apart, as EventBatch in the field "batch" of an entry of the stream `keys.EVENTS`.
Every message may be lost, repeated or late. The worker repeats until answered; whoever is late is told so.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from footplate.contract.ids import CheckpointId, ClaimId, Fence, JobId, NodeId
from footplate.contract.lifecycle import StopMode

PROTOCOL = 2
"""Raised by an incompatible change. Control serves PROTOCOL and PROTOCOL - 1, and says so to anyone else."""
SHARES_JOBS = 2
"""The protocol from which on a node can share a job with other nodes: who speaks an older one would train alone."""


class Message(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)

    protocol: int = PROTOCOL


class Gpu(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)

    uuid: str
    name: str
    memory_mb: int = 0
    capability: tuple[int, int] = (0, 0)
    """CUDA compute capability: (7, 0) Volta has fp16, (8, 0) Ampere has bf16."""


class Claim(Message):
    """May I run this? The same claim asked again is granted again."""

    type: Literal["claim"] = "claim"
    job: JobId
    attempt: int
    fence: Fence
    claim: ClaimId
    node: NodeId
    boot: str
    meets_at: str | None = None
    """host:port on this node, bound already, where the ranks of a job on several nodes can meet. That of source 0 is
    taken."""


class AttemptBeat(Message):
    """From an attempt's supervisor, every beat interval and at once when something changed."""

    type: Literal["attempt_beat"] = "attempt_beat"
    job: JobId
    attempt: int
    fence: Fence
    claim: ClaimId
    source: int = 0
    number: int
    """Rises with every beat: only a *new* number extends the lease."""
    journaled: int = 0
    """The last seq on the worker's disk."""
    deeds: int = 0
    """The newest deed that training was told of."""


class RunningAttempt(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)

    job: JobId
    attempt: int
    fence: Fence
    claim: ClaimId


BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class FileRoot(BaseModel):
    """The folder that data:// or models:// means on a node."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    path: str
    anchor: str
    """The folder itself, or the nearest one above it that existed when the node started."""
    device: int
    inode: int
    """Of the anchor: another process that finds both there sees the same folder."""

    @classmethod
    def at(cls, path: Path) -> Self:
        anchor = next(folder for folder in (path, *path.parents) if folder.is_dir())
        about = anchor.stat()
        return cls(path=str(path), anchor=str(anchor), device=about.st_dev, inode=about.st_ino)


class FileRoots(BaseModel):
    """Where a node looks for the files that specs name."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    machine: str
    """The kernel's boot id: devices and inodes mean nothing elsewhere."""
    data: FileRoot
    models: FileRoot


class NodeBeat(Message):
    """From a node's parent process: that it is there, what it has, what it runs."""

    type: Literal["node_beat"] = "node_beat"
    node: NodeId
    boot: str
    """Of this start of the node: it sorts behind those of the starts before."""
    number: int
    name: str
    pool: str = "default"
    slots: int
    gpus: list[Gpu] = Field(default_factory=list)
    draining: bool = False
    consuming: bool = True
    """Whether its canary came back through its own queue: alive is not enough, it must take work."""
    store_ok: bool = True
    """Whether it could read the service's probe file in the artifact store, and write beside it."""
    trouble: str | None = None
    """Why it can do no work now, in a sentence; None: it can."""
    exposed: str | None = None
    """Why training has root's rights there, in a sentence; None: it has not."""
    roots: FileRoots | None = None
    catalogue_hash: str | None = None
    catalogue: dict[str, Any] | None = None
    """Sent until the reply names its hash as known."""
    versions: dict[str, str] = Field(default_factory=dict)
    running: list[RunningAttempt] = Field(default_factory=list)
    dead: list[RunningAttempt] = Field(default_factory=list)
    """Their supervisor is gone without a word, and all that they had said has arrived: no lease need be waited out."""
    unsent: int = 0
    """Events of dead attempts, in this node's journals, that were not acknowledged."""
    unreadable: int = 0
    """Journals that nobody can tell whose they are: set aside in this node's folder, for somebody to look at."""


class CheckpointOffer(BaseModel):
    """A checkpoint that an attempt may continue from if it verifies; path is relative to the artifact store's root."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    id: CheckpointId
    step: int
    path: str
    manifest_sha256: str
    was_corrupt: bool = False
    """An attempt before this one found that it does not verify; its disk may have come back."""
    of: JobId | None = None
    """The other job whose it is, where this one has none of its own yet. None: its own."""


class Deed(BaseModel):
    """What somebody asked of the running loop. Done once; what it set, and what it evaluated, comes again where a later
    attempt goes over the same steps."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    no: int
    """Of the event that asked: it rises with every one."""
    save: bool = False
    evaluate: bool = False
    set: dict[str, Any] = Field(default_factory=dict)
    """Arguments of training, by their names."""
    step: int | None = None
    """After which it was done; None: not yet."""


class Grant(Message):
    """Yes: you alone. Carries all that the attempt needs."""

    type: Literal["grant"] = "grant"
    job: JobId
    attempt: int
    fence: Fence
    claim: ClaimId
    source: int = 0
    """Which of its nodes this is."""
    nodes: int = 1
    """How many it has."""
    meets_at: str | None = None
    """host:port where the ranks of several nodes meet. None: not every node has claimed yet, and nothing is started
    before; or there is one only."""
    spec: dict[str, Any]
    gpus: list[str] = Field(default_factory=list)
    """UUIDs of exactly the GPUs it may see."""
    checkpoints: list[CheckpointOffer] = Field(default_factory=list)
    """Newest first. Empty: it never had one, and starts at step 0."""
    deeds: list[Deed] = Field(default_factory=list)
    """What was asked of the job so far and still counts, oldest first."""
    watermark: int = 0
    lease_seconds: float
    beat_seconds: float
    time_left_seconds: float | None = None
    traceparent: str | None = None
    """The attempt's own span, in the trace that the job's POST was part of. None: it was part of none."""
    project: str | None = None
    """Whose job it is. None: the service is of a version that did not say."""


class Denial(Message):
    """No, and why. The asker drops the message; somebody else has it, or nobody wants it any more."""

    type: Literal["denial"] = "denial"
    claim: ClaimId
    reason: str


class Stop(BaseModel):
    """Stop: for whom, how, and how long the worker may take before it must kill."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    because: Literal["cancel", "pause", "drain", "time_limit", "peer"]
    """`peer`: the job's part on another node has failed."""
    mode: StopMode
    within_seconds: float


class AttemptReply(Message):
    """The answer to a beat, and pushed unasked when a stop was decided, or something was asked of the loop."""

    type: Literal["attempt_reply"] = "attempt_reply"
    claim: ClaimId
    number: int = 0
    superseded: bool = False
    """The fence has moved on: stop now, report nothing more."""
    meets_at: str | None = None
    """As in the grant, once every node has claimed."""
    stop: Stop | None = None
    deeds: list[Deed] = Field(default_factory=list)
    """What was asked of the loop and is not done, oldest first."""
    watermark: int = 0
    stored_step: int | None = Field(default=None, ge=0, lt=2**63)
    """The newest checkpoint of this attempt that SQL has: older ones may go. The watermark does not say so: what
    a superseded attempt says is acknowledged, too."""
    held_steps: list[Annotated[int, Field(ge=0, lt=2**63)]] | None = None
    """Checkpoints of this attempt that must stay, whatever its limits say: others start from them. None: not told."""
    closed: bool = False
    """The service has everything of this attempt: the journal may go."""


class NodeReply(Message):
    type: Literal["node_reply"] = "node_reply"
    number: int
    catalogue_known: str | None = None
    drain: bool = False
    refused: str | None = None
    """Why this node gets no work: another protocol, an identity in use, a store it cannot read."""


class EventBatch(Message):
    """One entry of the event stream: consecutive events of one source, `events` being a JSON array of WorkerEvents."""

    type: Literal["events"] = "events"
    job: JobId
    attempt: int
    fence: Fence
    claim: ClaimId
    source: int
    first: int = 1
    """The oldest seq that the journal still has: what is older, and not stored, will never come."""
    events: list[dict[str, Any]]


ToControl = Annotated[Claim | AttemptBeat | NodeBeat, Field(discriminator="type")]
ToAttempt = Annotated[Grant | Denial | AttemptReply, Field(discriminator="type")]

TO_CONTROL: TypeAdapter[Claim | AttemptBeat | NodeBeat] = TypeAdapter(ToControl)
TO_ATTEMPT: TypeAdapter[Grant | Denial | AttemptReply] = TypeAdapter(ToAttempt)
