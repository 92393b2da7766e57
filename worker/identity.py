"""Reads and writes a node's identity, a file in the node's folder. Only one worker at a time can lock that folder."""

from __future__ import annotations

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
from footplate.contract.host.linux import try_lock
from footplate.contract.host.node_folder import NodeFolder
from footplate.contract.ids import NodeId, is_id, new_node_id, uuid7
from worker.user_range import Rights

LOCK_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class Node:
    """A node since its last start. Its process has locked the node's folder."""

    id: NodeId
    boot: str
    folder: NodeFolder
    slots: int
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)
    """The secrets by their names in specs. Training gets only the ones that its job names."""
    rights: Rights = field(default_factory=Rights)
    """The users that training runs as on this node."""

    @property
    def threads(self) -> int:
        """The number of torch's threads in one rank.

        One CPU is left to the node, Redis and the service, because OpenMP's threads spin while they wait. One thread
        too many made a small step three to ten times slower.
        """
        return max(1, ((os.cpu_count() or 1) - 1) // self.slots)


def claim_node(root: Path, slots: int, secrets: Mapping[str, str] | None = None) -> Node:
    """Locks a node's folder for this process, and returns the node. The first start creates the node's identity."""
    folder = NodeFolder(root)
    for path in (root, folder.journals):
        path.mkdir(parents=True, exist_ok=True)
    # Other users of this machine, such as training's, must not read events.
    folder.journals.chmod(0o700)
    fd = os.open(folder.identity, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    if not _lock(fd):
        os.close(fd)
        raise SettingsError(
            f"another worker runs in {root}, and a node's folder belongs to one worker. "
            "Give this one its own FOOTPLATE_NODE_HOME."
        )
    identity, boot = _start(fd)
    node = Node(identity, boot, folder, slots, secrets or {})
    shutil.rmtree(folder.run, ignore_errors=True)
    # An earlier start was killed while it wrote these files. No other process writes them, because we have the lock.
    for path in folder.journals.glob("*.new"):
        path.unlink()
    folder.run.mkdir(mode=0o700)
    return node


def _lock(fd: int) -> bool:
    """Locks a file. Waits up to two seconds, because the dying children of a killed worker still hold the lock."""
    deadline = time.monotonic() + LOCK_SECONDS
    while not try_lock(fd):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def _start(fd: int) -> tuple[NodeId, str]:
    """Returns the node's id and a new boot id, and writes both to the locked file.

    Boot ids sort in the order of the starts, even if the clock was set back. So a late heartbeat of an earlier start is
    recognised as old.
    """
    node, last_boot = _read(fd)
    boot = uuid7()
    if boot <= last_boot:
        boot = uuid7(int(last_boot[:12], 16) + 1)
    content = json.dumps({"node": node, "boot": boot}).encode() + b"\n"
    # The file is overwritten first and cut afterwards, so that it contains an identity at every moment.
    os.pwrite(fd, content, 0)
    os.ftruncate(fd, len(content))
    os.fsync(fd)
    return node, boot


def _read(fd: int) -> tuple[NodeId, str]:
    """Returns the node's id and its last boot id. A file that is new or broken gives a new id."""
    with suppress(ValueError, TypeError, AttributeError):
        identity = json.loads(os.pread(fd, 4096, 0))
        if is_id(node := identity.get("node", ""), "node"):
            last_boot = identity.get("boot", "")
            return NodeId(node), last_boot if re.fullmatch("[0-9a-f]{32}", last_boot) else ""
    return new_node_id(), ""
