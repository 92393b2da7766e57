"""The needs of a job: the few fields of its spec that placement reads, so that no spec is parsed again."""

from __future__ import annotations

from dataclasses import dataclass

from pydantic import TypeAdapter

from footplate.contract.spec import JobSpec
from service.jobs.installed import needs_of

VOLTA, AMPERE, ANY = (7, 0), (8, 0), (0, 0)


@dataclass(frozen=True, slots=True)
class Needs:
    """The nodes, GPUs and installed components that a job needs. Jobs with equal needs fit the same nodes."""

    nodes: int = 1
    gpus_per_node: int | None = None
    """The number of GPUs on each node. None means one slot with or without a GPU, and 0 means CPU only."""
    processes_per_node: int | None = None
    pool: str = "default"
    gpu: str | None = None
    """A text that the GPU's name must contain."""
    capability: tuple[int, int] = ANY
    """The lowest CUDA compute capability that the job's precision needs. It matters only for nodes with GPUs."""
    requirements: tuple[str, ...] = ()
    """The components, packages and secrets that each node of the job must have, as texts (`installed.py`)."""

    @classmethod
    def of(cls, spec: JobSpec) -> Needs:
        resources = spec.resources
        return cls(
            nodes=resources.nodes,
            gpus_per_node=resources.gpus_per_node,
            processes_per_node=resources.processes_per_node,
            pool=resources.pool,
            gpu=resources.gpu,
            capability=AMPERE if spec.training.bf16 else VOLTA if spec.training.fp16 else ANY,
            # Sorted, so that jobs with equal needs have equal tuples.
            requirements=tuple(sorted(set(needs_of(spec)))),
        )

    @classmethod
    def from_json(cls, text: str) -> Needs:
        # A job that was queued before an upgrade has no `requirements`, and may be placed on any node, as before.
        return _ADAPTER.validate_json(text)

    def to_json(self) -> str:
        return _ADAPTER.dump_json(self).decode()

    def __str__(self) -> str:
        count, processes = self.gpus_per_node, self.processes_per_node or 1
        kind = f"{self.gpu} GPU" if self.gpu else "GPU"
        slots = _some(processes, "CPU slot") if count == 0 else _some(count or 1, kind)
        if count is None and self.gpu is None:
            slots = _some(processes, "slot")
        if self.capability != ANY and count != 0:
            slots += f" (compute capability {'.'.join(map(str, self.capability))} or higher, if it is a GPU)"
        where = f"in pool {self.pool!r}"
        return f"{slots} {where}" if self.nodes == 1 else f"{self.nodes} nodes with {slots} each {where}"


_ADAPTER = TypeAdapter(Needs)


def _some(count: int, noun: str) -> str:
    return f"{count} {noun}" + ("s" if count > 1 else "")
