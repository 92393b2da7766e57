"""What one rank is told when it is started, and the wire between a supervisor and the warm parent.

A supervisor connects, sends one packet per rank with its descriptors, and keeps the connection: as a lifeline (its end
kills the ranks), to have them killed, and to hear how they ended. The order itself lies in a memory file, so that it
leaves nothing behind and may be of any size.
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
from footplate.contract.ids import ClaimId, Fence, JobId
from footplate.contract.layout import UPLOADS
from footplate.contract.lifecycle import StopMode
from footplate.contract.messages import CheckpointOffer, Deed

SOCKET = "warm.sock"
HERE = "127.0.0.1"
STOP_BYTES = {StopMode.CHECKPOINT: 1, StopMode.GRACEFUL: 2}
"""What the supervisor writes into the stop byte; 0 is: go on."""
STORED_AT = slice(8, 16)
"""Where it writes, in the same page, the step of the newest checkpoint that the service has stored."""
NEWS_AT = slice(1024, 1032)
"""And how many bytes of deeds lie behind the page, a line of JSON for each."""
HELD_FROM, MOST_HELD = 16, 64
"""Behind it: how many of the attempt's checkpoints have to stay, and the step of each."""
TICK = "tick"
"""A line that only says: still here."""
OUTCOME = "outcome"
"""The line with which training tells how it ended: a DoneData."""
ANOTHER_S = "another_s"
"""Beside it, where a rank failed because another was gone."""


class Order(BaseModel):
    """Everything that one rank of one attempt is told. Holds no credential."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    job: JobId
    attempt: int
    fence: Fence
    claim: ClaimId
    rank: int = 0
    world: int = 1
    """How many ranks the attempt has."""
    node: int = 0
    """Which of the attempt's nodes this is; each has as many ranks."""
    nodes: int = 1
    host: str = HERE
    """Where the ranks meet: this machine, unless there are several."""
    port: int | None = None
    """None: there is nobody to meet."""
    interface: str | None = None
    """The network interface by which this node speaks to the others."""
    spec: dict[str, Any]
    gpus: list[str]
    checkpoints: list[CheckpointOffer]
    deeds: list[Deed] = Field(default_factory=list)
    artifacts: Path
    data: Path
    models: Path
    hub: dict[str, str] = Field(default_factory=dict)
    """The folder of each place on a hub: `hub://owner/name@main`. Its name is the commit. And each URL's file."""
    unpacked: Path | None = None
    """The bundle's files, where root has unpacked them. None: this process unpacks them itself."""
    threads: int
    environment: dict[str, str] = Field(default_factory=dict)

    @property
    def local_world(self) -> int:
        """How many ranks each node has."""
        return self.world // self.nodes

    @property
    def local_rank(self) -> int:
        return self.rank - self.node * self.local_world

    @property
    def stamp(self) -> dict[str, Any]:
        """Whose a checkpoint is: in its manifest."""
        return {"job": self.job, "attempt": self.attempt, "fence": self.fence}

    @property
    def files(self) -> AttemptFiles:
        return AttemptFiles(self.artifacts, self.job, self.attempt)

    @property
    def roots(self) -> Roots:
        """What names of files mean here."""
        return Roots(self.data, self.models, self.artifacts / UPLOADS, self.hub)

    @property
    def commits(self) -> dict[str, str]:
        """What was fetched and is trained on, in words."""
        return {shown(place): pin_of(place, Path(found).stem) for place, found in self.hub.items()}


class Started(BaseModel):
    type: Literal["started"] = "started"
    rank: int
    pid: int
    """Of the process, its session and its group alike."""


class Exited(BaseModel):
    type: Literal["exited"] = "exited"
    rank: int
    code: int
    """As `os.waitstatus_to_exitcode` says: negative is the signal that ended it."""
    peak_rss_mb: float
    never_started: str | None = None
    """Why there was no process at all."""


class Start(BaseModel):
    type: Literal["start"] = "start"
    rank: int = 0
    user: User | None = None
    """Whom it becomes before it reads its order. None: nobody else."""


class Kill(BaseModel):
    """To the groups of all ranks on this connection."""

    type: Literal["kill"] = "kill"
    signal: int


TO_WARM: TypeAdapter[Start | Kill] = TypeAdapter(Annotated[Start | Kill, Field(discriminator="type")])
FROM_WARM: TypeAdapter[Started | Exited] = TypeAdapter(Annotated[Started | Exited, Field(discriminator="type")])

FD_NAMES = ("order", "events", "stop", "stdout", "stderr")
"""The descriptors of a start, in this order: the Order to read, the socket to emit on, the stop byte, two pipes. Then,
if the user is not shared, the lock by which the attempt holds this user; the warm parent keeps the lock until none of
the user's processes is left. Last, of the first of several ranks: the socket that listens where they meet."""


def hold_steps(page: mmap.mmap, steps: Sequence[int]) -> None:
    """The newest, if they are more than the page was made for. The count goes last: no step is read that is none."""
    kept = sorted(steps)[-MOST_HELD:]
    for place, step in enumerate(kept, start=1):
        page[HELD_FROM + 8 * place : HELD_FROM + 8 * place + 8] = step.to_bytes(8, "little")
    page[HELD_FROM : HELD_FROM + 8] = len(kept).to_bytes(8, "little")


def steps_held(page: mmap.mmap) -> set[int]:
    count = min(MOST_HELD, int.from_bytes(page[HELD_FROM : HELD_FROM + 8], "little"))
    places = (HELD_FROM + 8 * place for place in range(1, count + 1))
    return {int.from_bytes(page[at : at + 8], "little") for at in places}


@contextmanager
def short_path(folder: Path) -> Iterator[str]:
    """A path to the socket that fits into the 108 bytes that a socket's address has, wherever the folder lies."""
    fd = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{fd}/{SOCKET}"
    finally:
        os.close(fd)


def connect(folder: Path) -> socket.socket:
    """A connection to the node's warm parent; ConnectionRefusedError or FileNotFoundError where there is none now."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        with short_path(folder) as path:
            connection.connect(path)
    except OSError:
        connection.close()
        raise
    return connection


def listen(folder: Path) -> socket.socket:
    """The warm parent's side. A socket file of a dead one is replaced."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / SOCKET).unlink(missing_ok=True)
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with short_path(folder) as path:
        listening.bind(path)
    listening.listen(256)
    return listening


def send_start(
    connection: socket.socket,
    order: Order,
    user: User | None,
    events: int,
    stop: int,
    stdout: int,
    stderr: int,
    *more: int,
) -> None:
    memory = os.memfd_create("footplate-order", os.MFD_CLOEXEC)
    try:
        with os.fdopen(os.dup(memory), "wb") as file:
            file.write(order.model_dump_json().encode())
        os.lseek(memory, 0, os.SEEK_SET)
        message = Start(rank=order.rank, user=user).model_dump_json().encode()
        socket.send_fds(connection, [message], [memory, events, stop, stdout, stderr, *more])
    finally:
        os.close(memory)


def read_order(fd: int) -> Order:
    with os.fdopen(fd, "rb") as file:
        return Order.model_validate_json(file.read())


def close_all_but(kept: Sequence[int]) -> None:
    """Closes every descriptor of this process but these."""
    previous = -1
    for fd in [*sorted(set(kept)), os.sysconf("SC_OPEN_MAX")]:
        os.closerange(previous + 1, fd)
        previous = fd
