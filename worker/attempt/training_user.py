"""The user that an attempt's training runs as on this node, and the folders that belong to this user until its end."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from footplate.contract.host.linux import try_lock
from footplate.contract.host.user import give_fetched_files, make_writable_folder
from footplate.contract.layout import attempt_folder
from footplate.contract.messages import Grant
from footplate.contract.spec import JobSpec
from worker.attempt.build_folder import BuildFolder
from worker.identity import Node
from worker.user_range import ReservedUser, lock_folder, reserve_user


class TrainingUser:
    """The user of one attempt's training. Each attempt has a user of its own if the node has a range of users."""

    def __init__(self, node: Node, grant: Grant, spec: JobSpec) -> None:
        self._node, self._grant, self._spec = node, grant, spec
        self.user = node.rights.user
        """The user. None: training runs as the node's own user, or no user is reserved yet."""
        self.build_variables: dict[str, str] = {}
        self.unpacked: Path | None = None
        """The bundle's files, if they are unpacked for this user."""
        self._reserved: ReservedUser | None = None
        """The attempt's own user and its lock, once reserved."""
        self._build: BuildFolder | None = None
        self._shared: int | None = None
        """A descriptor of the attempt's folder, if several nodes share the folder. Locked while this node uses it."""

    def reserve(self) -> bool:
        """Reserves a user, if each attempt has its own. Returns False if none is free now."""
        if (users := self._node.rights.users) is not None and self._reserved is None:
            grant, locks = self._grant, lock_folder(self._node.folder.root / "users")
            self._reserved = reserve_user(users, locks, grant.job, grant.attempt, grant.nodes)
            self.user = None if self._reserved is None else self._reserved.user
        return users is None or self._reserved is not None

    @property
    def lock(self) -> int | None:
        """The lock that reserves the attempt's user."""
        return None if self._reserved is None else self._reserved.lock

    def make_folders(self, root: Path, scratch: str, *, was_fetched: bool) -> None:
        """Makes the attempt's folder below `root`, and the folder of its extensions."""
        assert self.user is not None
        grant = self._grant
        folder = attempt_folder(grant.job, grant.attempt)
        if was_fetched:
            give_fetched_files(root, folder, self.user)
        # Later attempts and forks read these checkpoints as other users, even while this attempt runs.
        room = make_writable_folder(root, folder, self.user, is_passed=True)
        if self._reserved is None:
            return
        self._build = BuildFolder(self._node.folder.root, self._spec, grant.project or grant.job, self.user)
        self.build_variables = self._build.environment(scratch)
        self._reserved.lend(folder for folder in (room, self._build.folder) if folder is not None)
        self.unpacked = self._build.unpacked(root, scratch)
        if grant.nodes > 1 and not was_fetched:
            self._shared = os.open(room, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            fcntl.flock(self._shared, fcntl.LOCK_SH)

    def take_files_back(self) -> None:
        """Makes root the owner of training's files. All training processes on this node must have ended."""
        if self._reserved is None:
            return
        if self._shared is not None and not _is_last(self._shared):
            # Another node still uses the shared folder. The last node that uses it makes root its owner.
            self._reserved.lend([] if self._build is None or self._build.folder is None else [self._build.folder])
        self._reserved.take_back()

    def close(self) -> None:
        for handle in (self._shared, self.lock):
            if handle is not None:
                os.close(handle)
        if self._build is not None:
            self._build.close()
        self._reserved = self._shared = self._build = None


def _is_last(shared: int) -> bool:
    """Releases this node's shared lock. Returns False if another node still has one, and so uses the folder."""
    try:
        fcntl.flock(shared, fcntl.LOCK_UN)
        return try_lock(shared)
    except OSError:
        return False
