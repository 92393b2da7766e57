"""What makes a node one node: its identity, held by a lock, and what lies in its folder."""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from footplate.contract.errors import SettingsError
from footplate.contract.host.node_folder import Places
from footplate.contract.ids import NodeId, is_id, new_node_id, uuid7
from worker.user_range import Rights

LOCK_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class Node:
    """One start of one node. The lock lives as long as the process that made this."""

    id: NodeId
    boot: str
    places: Places
    slots: int
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)
    """By the names that specs use. Known to the node alone: training gets those that its job names."""
    rights: Rights = field(default_factory=Rights)
    """Training's."""

    @property
    def threads(self) -> int:
        """Torch's, in one rank. One CPU is left to the node, Redis and the service: OpenMP's threads spin as they wait,
        and one too many for the CPUs was measured to cost a small step three to ten times its time."""
        return max(1, ((os.cpu_count() or 1) - 1) // self.slots)


def claim_node(root: Path, slots: int, secrets: Mapping[str, str] | None = None) -> Node:
    """The identity in the node's folder, made at its first start and held until this process ends."""
    places = Places(root)
    for folder in (root, places.journals):
        folder.mkdir(parents=True, exist_ok=True)
    # What lies there is whispered to no other user of this machine, training's own among them.
    places.journals.chmod(0o700)
    fd = os.open(places.identity, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    if not _lock(fd):
        os.close(fd)
        raise SettingsError(
            f"another worker runs in {root}: a node's folder belongs to one. Give this one its own FOOTPLATE_NODE_HOME."
        )
    identity, boot = _start(fd)
    node = Node(identity, boot, places, slots, secrets or {})
    shutil.rmtree(places.run, ignore_errors=True)
    # What somebody was writing when he died. Nobody lives here now: the lock is ours.
    for path in places.journals.glob("*.new"):
        path.unlink()
    places.run.mkdir(mode=0o700)
    return node


def _lock(fd: int) -> bool:
    """The children of a worker that was killed hold its lock for the moment in which they die."""
    deadline = time.monotonic() + LOCK_SECONDS
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                return False
            time.sleep(0.05)
        else:
            return True


def _start(fd: int) -> tuple[NodeId, str]:
    """Who this node is, and the boot id of this start: both read from the file that fd is locked by, and kept there.

    Boot ids sort in the order of the starts, whatever the clock did between them: a beat of an earlier start may arrive
    behind one of a later one, and must not be taken for a newer."""
    node, last = _read(fd)
    boot = uuid7()
    if boot <= last:
        boot = uuid7(int(last[:12], 16) + 1)
    said = json.dumps({"node": node, "boot": boot}).encode() + b"\n"
    # Over what is there, and cut after it: there is no moment without an identity.
    os.pwrite(fd, said, 0)
    os.ftruncate(fd, len(said))
    os.fsync(fd)
    return node, boot


def _read(fd: int) -> tuple[NodeId, str]:
    """A new one, where the file is new or does not say who this is."""
    with suppress(ValueError, TypeError, AttributeError):
        known = json.loads(os.pread(fd, 4096, 0))
        if is_id(node := known.get("node", ""), "node"):
            last = known.get("boot", "")
            return NodeId(node), last if re.fullmatch("[0-9a-f]{32}", last) else ""
    return new_node_id(), ""
