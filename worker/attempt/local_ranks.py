"""The ranks of an attempt that run on this node: their user, their folders, and the order that starts each."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Mapping
from pathlib import Path

from footplate.contract.host.launch import Order
from footplate.contract.host.linux import try_lock
from footplate.contract.host.user import give, give_fetched_files, make_writable_folder
from footplate.contract.layout import attempt_folder
from footplate.contract.messages import Grant
from footplate.contract.spec import JobSpec
from worker.attempt.build_folder import BuildFolder
from worker.attempt.rendezvous import RendezvousAddress
from worker.identity import Node
from worker.settings import WorkerSettings
from worker.user_range import ReservedUser, lock_folder, reserve_user


class LocalRanks:
    """The user, the folders and the orders of an attempt's ranks on this node."""

    def __init__(self, settings: WorkerSettings, node: Node, grant: Grant, spec: JobSpec) -> None:
        self._settings, self._node, self._grant, self._spec = settings, node, grant, spec
        self.user = node.rights.user
        self._reserved: ReservedUser | None = None
        """The attempt's own user and its lock, once reserved."""
        self._build: BuildFolder | None = None
        self._unpacked: Path | None = None
        self._build_variables: dict[str, str] = {}
        self._shared: int | None = None
        """A descriptor of the attempt's folder, if several nodes share the folder. Locked while this node uses it."""
        self.root = settings.artifacts_path
        """The folder that training uses as the artifact store."""
        self.scratch = ""
        """The folder for temporary files."""
        # Every node of the job has this many ranks.
        here = spec.resources.processes_per_node or max(1, len(grant.gpus))
        self.world = grant.nodes * here
        """The number of ranks on all nodes."""
        self._ranks = range(grant.source * here, (grant.source + 1) * here)
        self.needs_rendezvous = self.world > 1 or spec.resources.needs_a_launcher
        """True if ranks connect to each other, or use a library that expects a launcher."""

    def reserve_user(self) -> bool:
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

    def make_folders(self, *, was_fetched: bool) -> None:
        """Makes the folders that training writes to, owned by its user.

        If training has the node's own rights, nothing happens here, because training makes its folders itself.
        """
        if (user := self.user) is None:
            return
        folder = attempt_folder(self._grant.job, self._grant.attempt)
        if was_fetched:
            give_fetched_files(self.root, folder, user)
        # Later attempts and forks read these checkpoints as other users, even while this attempt runs.
        room = make_writable_folder(self.root, folder, user, is_passed=True)
        if self._reserved is not None:
            self._lend(self._reserved, room, was_fetched=was_fetched)
        for rank in self._ranks:
            give(Path(self._scratch_of(rank)), user)
        give(Path(self.scratch), user)

    def _lend(self, reserved: ReservedUser, room: Path, *, was_fetched: bool) -> None:
        grant = self._grant
        self._build = BuildFolder(self._node.folder.root, self._spec, grant.project or grant.job, reserved.user)
        self._build_variables = self._build.environment(self.scratch)
        reserved.lend(folder for folder in (room, self._build.folder) if folder is not None)
        self._unpacked = self._build.unpacked(self.root, self.scratch)
        if grant.nodes > 1 and not was_fetched:
            self._shared = os.open(room, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            fcntl.flock(self._shared, fcntl.LOCK_SH)

    def take_files_back(self) -> None:
        """Makes root the owner of training's files. All training processes on this node must have ended."""
        if self._reserved is None:
            return
        if self._shared is not None and not _is_last(self._shared):
            # The last of several nodes makes the shared folder root's.
            self._reserved.lend([] if self._build is None or self._build.folder is None else [self._build.folder])
        self._reserved.take_back()

    def close(self) -> None:
        for handle in (self._shared, self.lock):
            if handle is not None:
                os.close(handle)
        if self._build is not None:
            self._build.close()
        self._reserved = self._shared = self._build = None

    def orders(self, address: RendezvousAddress, environment: Mapping[str, str], hub: dict[str, str]) -> list[Order]:
        """Returns one order for each rank. `hub` maps each repository and URL to its files on this node."""
        own = {} if self.user is None else self.user.environment(self.scratch)
        return [
            self._order(rank, address, {**own, **environment, **self._build_variables}, hub) for rank in self._ranks
        ]

    def gpus_of(self, rank: int) -> list[str]:
        """Returns the GPU of this rank if there are as many GPUs as ranks, else all GPUs of the attempt."""
        gpus = self._grant.gpus
        return [gpus[rank - self._ranks.start]] if len(gpus) == len(self._ranks) else gpus

    def _order(
        self, rank: int, address: RendezvousAddress, environment: Mapping[str, str], hub: dict[str, str]
    ) -> Order:
        grant, settings = self._grant, self._settings
        return Order(
            job=grant.job,
            attempt=grant.attempt,
            fence=grant.fence,
            claim=grant.claim,
            rank=rank,
            world=self.world,
            node=grant.source,
            nodes=grant.nodes,
            host=address.host,
            port=address.port,
            interface=address.interface,
            spec=grant.spec,
            gpus=grant.gpus,
            checkpoints=grant.checkpoints,
            commands=grant.commands,
            artifacts=self.root,
            data=settings.data_path,
            models=settings.models_path,
            hub=hub,
            unpacked=self._unpacked,
            threads=int(os.environ.get("OMP_NUM_THREADS") or self._node.threads),
            environment={**environment, "TMPDIR": self._scratch_of(rank)},
        )

    def _scratch_of(self, rank: int) -> str:
        """Returns a rank's own temporary folder, because each rank unpacks files of the same names."""
        if self.world == 1:
            return self.scratch
        folder = Path(self.scratch, f"rank-{rank}")
        folder.mkdir(exist_ok=True)
        return str(folder)


def _is_last(shared: int) -> bool:
    """Releases this node's shared lock. Returns False if another node still has one, and so uses the folder."""
    try:
        fcntl.flock(shared, fcntl.LOCK_UN)
        return try_lock(shared)
    except OSError:
        return False
