"""The messages between service and worker: JSON with a `type`. Unknown fields are ignored, so N works with N±1.

Worker to control (list `keys.INBOX`): Claim, AttemptBeat, NodeBeat.
Control to worker (lists `keys.reply`, `keys.node_reply`): Grant, Denial, AttemptReply, NodeReply.
Events travel separately, as EventBatch in the field "batch" of an entry of the stream `keys.EVENTS`.
Every message may be lost, repeated or late. The worker repeats until answered, and a late sender gets an answer too.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, TypeAdapter

from footplate.contract.fields import InternalMessage
from footplate.contract.ids import CheckpointId, ClaimId, Fence, JobId, NodeId
from footplate.contract.lifecycle import StopMode

PROTOCOL = 4
"""The version of these messages. Control serves PROTOCOL and PROTOCOL - 1, and refuses all others with a reason. A
change that a node of the version before would misread raises PROTOCOL by two, so that control refuses that node."""


class ProtocolMessage(InternalMessage):
    protocol: int = PROTOCOL


class RunningAttempt(InternalMessage):
    """An attempt, with the fence and the claim that show which supervisor runs it."""

    job: JobId
    attempt: int
    fence: Fence
    claim: ClaimId


class Gpu(InternalMessage):
    uuid: str
    name: str
    memory_mb: int = 0
    capability: tuple[int, int] = (0, 0)
    """CUDA compute capability: (7, 0) Volta has fp16, (8, 0) Ampere has bf16."""


class Claim(ProtocolMessage, RunningAttempt):
    """A supervisor's request to run an attempt. Control grants a repeated claim again."""

    type: Literal["claim"] = "claim"
    node: NodeId
    boot: str
    rendezvous: str | None = None
    """The address (host:port) that this node has bound for the job's rendezvous. The ranks use the first node's."""


class AttemptBeat(ProtocolMessage, RunningAttempt):
    """A heartbeat of an attempt's supervisor, sent at every interval and at once after a change."""

    type: Literal["attempt_beat"] = "attempt_beat"
    source: int = 0
    number: int
    """The beat's number, which rises with each beat. Only a number that control has not seen extends the lease."""
    journaled: int = 0
    """The number (`seq`) of the last event in the journal on the worker's disk."""
    last_command: int = 0
    """The number of the newest command that was sent to training."""


BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class FileRoot(InternalMessage):
    """The folder that data:// or models:// stands for on a node."""

    path: str
    anchor: str
    """The folder itself, or the nearest one above it that existed when the node started."""
    device: int
    inode: int
    """Inode of the anchor. A process that finds the same device and inode at this path sees the same folder."""

    @classmethod
    def at(cls, path: Path) -> Self:
        anchor = next(folder for folder in (path, *path.parents) if folder.is_dir())
        about = anchor.stat()
        return cls(path=str(path), anchor=str(anchor), device=about.st_dev, inode=about.st_ino)


class FileRoots(InternalMessage):
    """The folders in which a node looks for the files that specs name."""

    machine: str
    """The kernel's boot id, which identifies the machine. Devices and inodes cannot be compared between machines."""
    data: FileRoot
    models: FileRoot


class NodeBeat(ProtocolMessage):
    """A heartbeat of a node's parent process, with the node's slots, GPUs, catalogue and running attempts."""

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
    """True if a signal drains the node until its end. A drain by an operator is known to control already."""
    consuming: bool = True
    """True if the node received its own test message (canary) through its Celery queue. Else the node gets no work."""
    store_ok: bool = True
    """True if the node could read the service's probe file in the artifact store, and write beside it."""
    trouble: str | None = None
    """The reason for which the node can do no work now, as a sentence. None if the node can work."""
    exposed: str | None = None
    """The reason for which training has root's rights on the node, as a sentence. None if training has none."""
    roots: FileRoots | None = None
    catalogue_hash: str | None = None
    catalogue: dict[str, Any] | None = None
    """The components that the node has. Sent until a reply of control names the catalogue's hash as known."""
    versions: dict[str, str] = Field(default_factory=dict)
    running: list[RunningAttempt] = Field(default_factory=list)
    dead: list[RunningAttempt] = Field(default_factory=list)
    """Attempts whose supervisor died without a report, and whose events have all arrived. Their leases end at once."""
    unsent: int = 0
    """The number of events of dead attempts in this node's journals that control has not acknowledged."""
    unreadable: int = 0
    """The number of journals whose attempt is unknown. The node moves them into a folder for a person to look at."""


class CheckpointOffer(InternalMessage):
    """A checkpoint to continue from if it verifies. `path` is relative to the artifact store's root."""

    id: CheckpointId
    step: int
    path: str
    manifest_sha256: str
    was_corrupt: bool = False
    """True if an earlier attempt could not verify the checkpoint, for example because its node could not read the
    disk. This attempt verifies the checkpoint again."""
    of: JobId | None = None
    """The other job that wrote the checkpoint, if this job has no checkpoint of its own yet. None means this job."""


class Command(InternalMessage):
    """A user's command to a running job, carried out once after a training step.

    A later attempt that repeats the same steps also repeats the command's changes and evaluation.
    """

    no: int
    """The number of the event that stored the command. A newer command has a higher number."""
    save: bool = False
    evaluate: bool = False
    set: dict[str, Any] = Field(default_factory=dict)
    """The new values of training arguments, by name."""
    step: int | None = None
    """The step after which the command was carried out. None if the command still waits."""


class Grant(ProtocolMessage, RunningAttempt):
    """Control's answer that accepts a claim, with all data for the attempt. Only this supervisor runs the attempt."""

    type: Literal["grant"] = "grant"
    source: int = 0
    """The index of this node among the attempt's nodes."""
    nodes: int = 1
    """The number of the attempt's nodes."""
    rendezvous: str | None = None
    """The address (host:port) of the rendezvous of ranks on several nodes. None until every node has claimed, and
    training must not start before. Always None for a job on one node."""
    spec: dict[str, Any]
    gpus: list[str] = Field(default_factory=list)
    """UUIDs of the GPUs that the attempt may see."""
    checkpoints: list[CheckpointOffer] = Field(default_factory=list)
    """The checkpoints to continue from, newest first. If empty, the job starts at step 0."""
    commands: list[Command] = Field(default_factory=list)
    """The job's commands that this attempt must carry out or repeat, oldest first."""
    watermark: int = 0
    beat_seconds: float
    time_left_seconds: float | None = None
    traceparent: str | None = None
    """The W3C `traceparent` of the attempt's span, in the trace of the job's POST. None if the POST had no trace."""
    project: str | None = None
    """The project that the job belongs to. None from a service of a version without this field."""


class Denial(ProtocolMessage):
    """Control's answer that refuses a claim, because another node runs the attempt or the attempt was withdrawn."""

    type: Literal["denial"] = "denial"
    claim: ClaimId
    reason: str


class Stop(InternalMessage):
    """Control's request to stop an attempt: the cause, the mode, and the time after which the worker kills training."""

    because: Literal["cancel", "pause", "drain", "time_limit", "peer"]
    """The cause of the stop. `peer`: the attempt's processes on another node have failed."""
    mode: StopMode
    within_seconds: float


class AttemptReply(ProtocolMessage):
    """Control's answer to an attempt's heartbeat. Also sent without a heartbeat after a new stop or command."""

    type: Literal["attempt_reply"] = "attempt_reply"
    claim: ClaimId
    number: int = 0
    superseded: bool = False
    """True if the job has a newer fence. The supervisor stops at once and sends no more events."""
    rendezvous: str | None = None
    """The address of the rendezvous, as in Grant. None until every node has claimed."""
    stop: Stop | None = None
    commands: list[Command] = Field(default_factory=list)
    """The user's commands that the attempt has not carried out yet, oldest first."""
    watermark: int = 0
    stored_step: int | None = Field(default=None, ge=0, lt=2**63)
    """The step of this attempt's newest checkpoint in SQL. Only older ones may be deleted. The watermark does not show
    that step, because events of a superseded attempt are acknowledged without being stored."""
    held_steps: list[Annotated[int, Field(ge=0, lt=2**63)]] | None = None
    """The steps of this attempt's checkpoints that must not be deleted, because other jobs start from them. None if
    this reply does not say."""
    closed: bool = False
    """True if the service has all events of this attempt, so that the journal may be deleted."""


class NodeReply(ProtocolMessage):
    type: Literal["node_reply"] = "node_reply"
    number: int
    catalogue_known: str | None = None
    drain: bool = False
    refused: str | None = None
    """The reason for which this node gets no work, such as an old protocol version, or an id that another node uses."""


class EventBatch(ProtocolMessage, RunningAttempt):
    """One entry of the Redis stream `keys.EVENTS`: consecutive events from one node's journal."""

    type: Literal["events"] = "events"
    source: int
    first: int = 1
    """The number (`seq`) of the oldest event that the journal still has. Older events that are not in SQL are lost."""
    events: list[dict[str, Any]]
    """The events, each with `seq`, `rank`, `kind`, `at`, `step`, `epoch` and `data`."""


ToControl = Annotated[Claim | AttemptBeat | NodeBeat, Field(discriminator="type")]
ToAttempt = Annotated[Grant | Denial | AttemptReply, Field(discriminator="type")]

TO_CONTROL: TypeAdapter[Claim | AttemptBeat | NodeBeat] = TypeAdapter(ToControl)
TO_ATTEMPT: TypeAdapter[Grant | Denial | AttemptReply] = TypeAdapter(ToAttempt)
