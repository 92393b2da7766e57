"""A node's part of an attempt: which of its ranks run here, where they work, and what each of them is told."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Mapping
from pathlib import Path

from footplate.contract.host.launch import Order
from footplate.contract.host.user import give, hand_over, make_room
from footplate.contract.layout import attempt_folder
from footplate.contract.messages import Grant
from footplate.contract.strategies import needs_a_launcher
from worker.attempt.build_folder import BuildFolder
from worker.attempt.rendezvous import RendezvousAddress
from worker.identity import Node
from worker.settings import WorkerSettings
from worker.user_range import Held, hold, lock_folder


class LocalRanks:
    def __init__(self, settings: WorkerSettings, node: Node, grant: Grant) -> None:
        self._settings, self._node, self._grant = settings, node, grant
        self.user = node.rights.user
        self._held: Held | None = None
        """The user that this attempt alone has, once it does."""
        self._build: BuildFolder | None = None
        self._unpacked: Path | None = None
        self._place: dict[str, str] = {}
        self._shared: int | None = None
        """The attempt's folder, locked as long as ranks of this node write to it, if other nodes' ranks do too."""
        self.root = settings.artifacts_path
        """What training takes for the artifact store."""
        self.scratch = ""
        """For what is temporary."""
        resources = grant.spec.get("resources") or {}
        # Every one of the job's nodes has as many.
        here = int(resources.get("processes_per_node") or max(1, len(grant.gpus)))
        self.world = grant.nodes * here
        """Ranks on all nodes."""
        self._ranks = range(grant.source * here, (grant.source + 1) * here)
        self.needs_rendezvous = self.world > 1 or needs_a_launcher(resources)
        """True if ranks have to find each other."""

    def has_user(self) -> bool:
        """Whether training's user is known. Takes one that no other attempt has, if there is one to take."""
        if (users := self._node.rights.users) is not None and self._held is None:
            grant, locks = self._grant, lock_folder(self._node.places.root / "users")
            self._held = hold(users, locks, grant.job, grant.attempt, grant.nodes)
            self.user = None if self._held is None else self._held.user
        return users is None or self._held is not None

    @property
    def lock(self) -> int | None:
        """The lock by which the attempt has a user to itself."""
        return None if self._held is None else self._held.lock

    def make_room(self, *, was_fetched: bool) -> None:
        """What training writes to is its user's before there is any. With the node's rights it makes it itself."""
        if (user := self.user) is None:
            return
        folder = attempt_folder(self._grant.job, self._grant.attempt)
        if was_fetched:
            hand_over(self.root, folder, user)
        # Another attempt, of this job or of a fork, reads its checkpoints as another user, also while this one runs.
        room = make_room(self.root, folder, user, is_passed=True)
        if self._held is not None:
            self._lend(self._held, room, was_fetched=was_fetched)
        for rank in self._ranks:
            give(Path(self._scratch_of(rank)), user)
        give(Path(self.scratch), user)

    def _lend(self, held: Held, room: Path, *, was_fetched: bool) -> None:
        grant = self._grant
        self._build = BuildFolder(self._node.places.root, grant.spec, grant.project or grant.job, held.user)
        self._place = self._build.environment(self.scratch)
        held.lend(folder for folder in (room, self._build.folder) if folder is not None)
        self._unpacked = self._build.unpacked(self.root, self.scratch)
        if grant.nodes > 1 and not was_fetched:
            self._shared = os.open(room, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            fcntl.flock(self._shared, fcntl.LOCK_SH)

    def take_back(self) -> None:
        """What training has written is root's from here on. No process of training may be left on this node."""
        if self._held is None:
            return
        if self._shared is not None and not _is_last(self._shared):
            # Of several nodes the last one does it for all.
            self._held.lend([] if self._build is None or self._build.folder is None else [self._build.folder])
        self._held.take_back()

    def close(self) -> None:
        for handle in (self._shared, self.lock):
            if handle is not None:
                os.close(handle)
        if self._build is not None:
            self._build.close()
        self._held = self._shared = self._build = None

    def orders(self, address: RendezvousAddress, environment: Mapping[str, str], hub: dict[str, str]) -> list[Order]:
        """One for each rank. `hub` are the folders of what was fetched there."""
        own = {} if self.user is None else self.user.environment(self.scratch)
        return [self._order(rank, address, {**own, **environment, **self._place}, hub) for rank in self._ranks]

    def gpus_of(self, rank: int) -> list[str]:
        """Where each has one, it is that of its number."""
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
            deeds=grant.deeds,
            artifacts=self.root,
            data=settings.data_path,
            models=settings.models_path,
            hub=hub,
            unpacked=self._unpacked,
            threads=int(os.environ.get("OMP_NUM_THREADS") or self._node.threads),
            environment={**environment, "TMPDIR": self._scratch_of(rank)},
        )

    def _scratch_of(self, rank: int) -> str:
        """Several unpack the same, each for itself."""
        if self.world == 1:
            return self.scratch
        folder = Path(self.scratch, f"rank-{rank}")
        folder.mkdir(exist_ok=True)
        return str(folder)


def _is_last(shared: int) -> bool:
    """Whether no other node locks the folder any more. Lets go of it first, so that one of several is the last."""
    try:
        fcntl.flock(shared, fcntl.LOCK_UN)
        fcntl.flock(shared, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
