"""A node's part of an attempt: which of its ranks run here, where they work, and what each of them is told."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from contract.layout import attempt_folder
from contract.messages import Grant
from contract.strategies import needs_a_launcher
from worker.launch import Order
from worker.meeting import Place
from worker.node import Node
from worker.settings import WorkerSettings
from worker.user import give, hand_over, make_room


class Part:
    def __init__(self, settings: WorkerSettings, node: Node, grant: Grant) -> None:
        self._settings, self._node, self._grant = settings, node, grant
        self.user = node.rights.user
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
        self.meets = self.world > 1 or needs_a_launcher(resources)
        """Whether ranks have to find each other."""

    def make_room(self, *, was_fetched: bool) -> None:
        """What training writes to is its user's before there is any. With the node's rights it makes it itself."""
        if (user := self.user) is None:
            return
        folder = attempt_folder(self._grant.job, self._grant.attempt)
        if was_fetched:
            hand_over(self.root, folder, user)
        make_room(self.root, folder, user)
        for rank in self._ranks:
            give(Path(self._scratch_of(rank)), user)
        give(Path(self.scratch), user)

    def orders(self, place: Place, environment: Mapping[str, str], hub: dict[str, str]) -> list[Order]:
        """One for each rank. `hub` are the folders of what was fetched there."""
        own = {} if self.user is None else self.user.environment(self.scratch)
        return [self._order(rank, place, {**own, **environment}, hub) for rank in self._ranks]

    def gpus_of(self, rank: int) -> list[str]:
        """Where each has one, it is that of its number."""
        gpus = self._grant.gpus
        return [gpus[rank - self._ranks.start]] if len(gpus) == len(self._ranks) else gpus

    def _order(self, rank: int, place: Place, environment: Mapping[str, str], hub: dict[str, str]) -> Order:
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
            host=place.host,
            port=place.port,
            interface=place.interface,
            spec=grant.spec,
            gpus=grant.gpus,
            checkpoints=grant.checkpoints,
            deeds=grant.deeds,
            artifacts=self.root,
            data=settings.data_path,
            models=settings.models_path,
            hub=hub,
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
