"""The ranks of an attempt that run on this node: their temporary folders, and the order that starts each."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from footplate.contract.host.launch import Order
from footplate.contract.host.user import give
from footplate.contract.messages import Grant
from footplate.contract.spec import JobSpec
from worker.attempt.rendezvous import RendezvousAddress
from worker.attempt.training_user import TrainingUser
from worker.identity import Node
from worker.settings import WorkerSettings


class LocalRanks:
    """The folders and the orders of an attempt's ranks on this node."""

    def __init__(
        self, settings: WorkerSettings, node: Node, grant: Grant, spec: JobSpec, environment: Mapping[str, str]
    ) -> None:
        """Takes the variables that the spec sets, in `environment`."""
        self._settings, self._node, self._grant, self._environment = settings, node, grant, environment
        self.owner = TrainingUser(node, grant, spec)
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

    def make_folders(self, *, was_fetched: bool) -> None:
        """Makes the folders that training writes to, owned by its user.

        If training has the node's own rights, nothing happens here, because training makes its folders itself.
        """
        if (user := self.owner.user) is not None:
            self.owner.make_folders(self.root, self.scratch, was_fetched=was_fetched)
            for folder in (*map(self._scratch_of, self._ranks), self.scratch):
                give(Path(folder), user)

    def orders(self, address: RendezvousAddress, hub: dict[str, str]) -> list[Order]:
        """Returns one order for each rank. `hub` maps each repository and URL to its files on this node."""
        user_variables = {} if self.owner.user is None else self.owner.user.environment(self.scratch)
        variables = {**user_variables, **self._environment, **self.owner.build_variables}
        return [self._order(rank, address, variables, hub) for rank in self._ranks]

    def gpus_of(self, rank: int) -> list[str]:
        """Returns the GPU of this rank if there are as many GPUs as ranks, else all GPUs of the attempt."""
        gpus = self._grant.gpus
        return [gpus[rank - self._ranks.start]] if len(gpus) == len(self._ranks) else gpus

    def _order(
        self, rank: int, address: RendezvousAddress, environment: Mapping[str, str], hub: dict[str, str]
    ) -> Order:
        grant, settings = self._grant, self._settings
        granted = {name: value for name, value in grant if name in Order.model_fields}
        return Order(
            **granted,
            rank=rank,
            world=self.world,
            node=grant.source,
            host=address.host,
            port=address.port,
            interface=address.interface,
            artifacts=self.root,
            data=settings.data_path,
            models=settings.models_path,
            hub=hub,
            unpacked=self.owner.unpacked,
            threads=threads_of(os.environ.get("OMP_NUM_THREADS", ""), self._node.threads),
            environment={**environment, "TMPDIR": self._scratch_of(rank)},
        )

    def _scratch_of(self, rank: int) -> str:
        """Returns a rank's own temporary folder, because each rank unpacks files of the same names."""
        if self.world == 1:
            return self.scratch
        folder = Path(self.scratch, f"rank-{rank}")
        folder.mkdir(exist_ok=True)
        return str(folder)


def threads_of(omp_num_threads: str, default: int) -> int:
    """Returns the number of threads that an operator has set, or the usual number.

    OpenMP also accepts a number for each level of nested regions, such as `4,2`. torch has only the first level.
    """
    first = omp_num_threads.partition(",")[0].strip()
    return int(first) if first.isdecimal() and int(first) > 0 else default
