"""The order that starts a rank, and the wire between a supervisor and the warm parent.

A supervisor connects, and sends one packet with descriptors for each rank. Through the connection the supervisor also
kills the ranks, and receives their exit codes. When the connection ends, the warm parent kills the ranks. The order
itself is in a memory file, whose descriptor is in the packet, because a packet's size is limited.
"""

from __future__ import annotations

import mmap
import os
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from footplate.contract.files import pin_of, shown
from footplate.contract.host.artifacts import AttemptFiles
from footplate.contract.host.file_roots import Roots
from footplate.contract.host.user import User
from footplate.contract.layout import UPLOADS
from footplate.contract.lifecycle import StopMode
from footplate.contract.messages import CheckpointOffer, Command, RunningAttempt
from footplate.contract.spec import JobSpec

SOCKET = "warm.sock"
LOOPBACK = "127.0.0.1"
STOP_BYTES = {StopMode.CHECKPOINT: 1, StopMode.GRACEFUL: 2}
"""The values that the supervisor writes into the stop byte. 0 means that training goes on."""
TERMINATED_AT = 1
"""The byte of the shared page that is 1 after the supervisor has sent SIGTERM to training."""
IGNORES_STOPS_AT = 2
"""The byte of the shared page that is 1 while a script runs that has made neither a Trainer nor an Accelerator.

Nothing reads the stop byte then."""
STORED_AT = slice(8, 16)
"""The bytes of the shared page that hold the step of the newest checkpoint that the service has stored."""
COMMANDS_AT = slice(1024, 1032)
"""The bytes of the shared page that hold the length of all live commands, which follow the page as lines of JSON."""
HELD_FROM, MOST_HELD = 16, 64
"""The offset in the shared page of the number of checkpoints that must stay. Their steps follow it, at most 64."""
TICK = "tick"
"""The kind of a message by which a rank only shows that its process still works."""
OUTCOME = "outcome"
"""The kind of the message with a rank's outcome, as DoneData."""


class Order(RunningAttempt):
    """All instructions for one rank of one attempt. Holds no credential."""

    model_config = ConfigDict(extra="forbid")

    rank: int = 0
    world: int = 1
    """The number of ranks of the attempt."""
    node: int = 0
    """The index of this node among the attempt's nodes. Each node has the same number of ranks."""
    nodes: int = 1
    host: str = LOOPBACK
    """The address of the rendezvous. This machine, unless there are several nodes."""
    port: int | None = None
    """The port of the rendezvous. None if there is only one rank."""
    interface: str | None = None
    """The network interface through which this node reaches the others."""
    spec: dict[str, Any]
    gpus: list[str]
    checkpoints: list[CheckpointOffer]
    commands: list[Command] = Field(default_factory=list)
    artifacts: Path
    data: Path
    models: Path
    hub: dict[str, str] = Field(default_factory=dict)
    """The paths of downloads on this node: of each repository at a revision, such as `hub://owner/name@main`, and of
    each URL. A repository's folder has the commit as its name."""
    unpacked: Path | None = None
    """The bundle's files, if root has unpacked them. If None, this process unpacks them itself."""
    threads: int
    environment: dict[str, str] = Field(default_factory=dict)

    @property
    def local_world(self) -> int:
        """Returns the number of ranks on each node."""
        return self.world // self.nodes

    @property
    def local_rank(self) -> int:
        return self.rank - self.node * self.local_world

    @property
    def stamp(self) -> dict[str, Any]:
        """Returns the job, attempt and fence that the manifest of a checkpoint names."""
        return {"job": self.job, "attempt": self.attempt, "fence": self.fence}

    @property
    def files(self) -> AttemptFiles:
        return AttemptFiles(self.artifacts, self.job, self.attempt)

    @property
    def roots(self) -> Roots:
        """Returns the folders of `data://`, `models://`, uploaded files and downloads on this node."""
        return Roots(self.data, self.models, self.artifacts / UPLOADS, self.hub)

    @property
    def commits(self) -> dict[str, str]:
        """Returns the commit of each repository, and the sha256 of each URL's file, that the job uses."""
        return {shown(place): pin_of(place, Path(folder).stem) for place, folder in self.hub.items()}


class Started(BaseModel):
    """The warm parent's message that a rank's process was forked."""

    type: Literal["started"] = "started"
    rank: int
    pid: int
    """The id of the process, which is also that of its session and its group."""


class Exited(BaseModel):
    """The warm parent's message that a rank's process has ended, or could not be started."""

    type: Literal["exited"] = "exited"
    rank: int
    code: int
    """The code of `os.waitstatus_to_exitcode`. A negative one is the signal that ended the process."""
    peak_rss_mb: float
    is_oom_kill: bool = False
    """True if the kernel's OOM killer ended the process."""
    never_started: str | None = None
    """The reason if no process could be started."""


class Start(BaseModel):
    """A supervisor's request to fork one rank. The packet also carries the descriptors of FD_NAMES."""

    type: Literal["start"] = "start"
    rank: int = 0
    user: User | None = None
    """The user that the process becomes before it reads its order. None to keep the present user."""
    libraries: tuple[str, ...] = ()
    """The libraries that the process will import, which the warm parent then imports for later processes."""


class Kill(BaseModel):
    """A signal for the process groups of all ranks on this connection."""

    type: Literal["kill"] = "kill"
    signal: int


TO_WARM: TypeAdapter[Start | Kill] = TypeAdapter(Annotated[Start | Kill, Field(discriminator="type")])
FROM_WARM: TypeAdapter[Started | Exited] = TypeAdapter(Annotated[Started | Exited, Field(discriminator="type")])

FD_NAMES = ("order", "events", "stop", "stdout", "stderr")
"""The descriptors of a start in this order: the order, the socket for events, the stop byte, and two pipes.

Further descriptors follow. If the attempt has a user of its own, the next is the lock on this user. The warm parent
keeps this lock until the user has no processes left. The last descriptor is a socket. The first of several ranks
listens for the rendezvous on it, and a serving session reads its requests from it.
"""


def hold_steps(page: mmap.mmap, steps: Sequence[int]) -> None:
    """Writes the steps of checkpoints that training must not delete into the shared page, at most the newest 64.

    The count is written last, so that no reader sees a partial step.
    """
    newest_steps = sorted(steps)[-MOST_HELD:]
    for place, step in enumerate(newest_steps, start=1):
        page[HELD_FROM + 8 * place : HELD_FROM + 8 * place + 8] = step.to_bytes(8, "little")
    page[HELD_FROM : HELD_FROM + 8] = len(newest_steps).to_bytes(8, "little")


def steps_held(page: mmap.mmap) -> set[int]:
    count = min(MOST_HELD, int.from_bytes(page[HELD_FROM : HELD_FROM + 8], "little"))
    places = (HELD_FROM + 8 * place for place in range(1, count + 1))
    return {int.from_bytes(page[at : at + 8], "little") for at in places}


@contextmanager
def short_path(folder: Path) -> Iterator[str]:
    """Yields a path of at most 108 bytes, the limit for a socket's address, for a folder of any length."""
    fd = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{fd}/{SOCKET}"
    finally:
        os.close(fd)


def connect(folder: Path) -> socket.socket:
    """Connects to the node's warm parent. Raises ConnectionRefusedError or FileNotFoundError if there is none now."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        with short_path(folder) as path:
            connection.connect(path)
    except OSError:
        connection.close()
        raise
    return connection


def listen(folder: Path) -> socket.socket:
    """Opens the warm parent's socket, and replaces the socket file of a dead one."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / SOCKET).unlink(missing_ok=True)
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with short_path(folder) as path:
        listening.bind(path)
    listening.listen(256)
    return listening


def send_start(
    connection: socket.socket, start: Start, order: Order, events: int, stop: int, stdout: int, stderr: int, *extra: int
) -> None:
    with os.fdopen(os.memfd_create("footplate-order", os.MFD_CLOEXEC), "w+b") as memory:
        memory.write(order.model_dump_json().encode())
        memory.seek(0)  # also writes what is buffered
        message = start.model_dump_json().encode()
        socket.send_fds(connection, [message], [memory.fileno(), events, stop, stdout, stderr, *extra])


def libraries_of(spec: JobSpec) -> tuple[str, ...]:
    """Returns the libraries that training will import for the spec's model and processor: transformers and peft."""
    parts = [part for part in (spec.model, spec.processor) if part is not None]
    if not any(part.use.startswith("hf/") for part in parts):
        return ()
    return ("transformers", "peft") if any(part.args.get("peft") for part in parts) else ("transformers",)


def read_order(fd: int) -> Order:
    with os.fdopen(fd, "rb") as file:
        return Order.model_validate_json(file.read())


def close_all_but(descriptors: Sequence[int]) -> None:
    """Closes every descriptor of this process except `descriptors`."""
    previous = -1
    for fd in [*sorted(set(descriptors)), os.sysconf("SC_OPEN_MAX")]:
        os.closerange(previous + 1, fd)
        previous = fd
