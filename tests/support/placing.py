"""Calls placement with single jobs, for tests. Placement itself takes queues of jobs with equal needs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from footplate.contract.ids import JobId, NodeId
from footplate.contract.messages import Gpu
from service.jobs.needs import Needs
from service.jobs.placement import NodeCapacity, Placement, QueueLine, Wait
from service.jobs.placement import place as place_lines
from service.store.queue import QueuedRow, QueuePosition


@dataclass(frozen=True, slots=True)
class Waiting:
    """A queued job with its needs."""

    job_id: JobId
    needs: Needs
    priority: int
    since: int

    @property
    def row(self) -> QueuedRow:
        return QueuedRow(self.job_id, self.priority, self.since, version=1)

    @property
    def position(self) -> QueuePosition:
        return self.row.position


@dataclass(frozen=True)
class Plan:
    placements: list[Placement]
    waits: dict[JobId, Wait]

    @property
    def placed(self) -> dict[str, list[str]]:
        """Returns the nodes of each placed job."""
        return {item.job_id: sorted(share.node for share in item.shares) for item in self.placements}


def capacity(
    name: str, slots: int = 2, gpus: int = 0, free: int | None = None, cards: tuple[Gpu, ...] = (), **more: object
) -> NodeCapacity:
    """Returns a node with these slots and GPUs, of which `free` are free."""
    cards = cards or tuple(Gpu(uuid=f"{name}-{n}", name="H100", capability=(9, 0)) for n in range(gpus))
    free_slots = slots if free is None else free
    settings = {"boot": "b", "pool": "default", "slots": slots, "free_slots": free_slots, "gpus": cards}
    return NodeCapacity(**{"node": NodeId(name), **settings, "free_gpus": cards[:free_slots], **more})  # type: ignore[arg-type]


def job(name: str, priority: int = 5, since: int = 0, **needs: object) -> Waiting:
    return Waiting(JobId(name), Needs(**needs), priority, since)  # type: ignore[arg-type]


def place(jobs: Iterable[Waiting], nodes: Sequence[NodeCapacity]) -> Plan:
    lines: dict[Needs, list[Waiting]] = {}
    for job in sorted(jobs, key=lambda job: job.position):
        lines.setdefault(job.needs, []).append(job)
    plan = place_lines(
        [QueueLine(repr(needs), needs, [job.row for job in line]) for needs, line in lines.items()], nodes
    )
    placed = {placement.job_id for placement in plan.placements}
    remaining = {repr(needs): [job.job_id for job in line if job.job_id not in placed] for needs, line in lines.items()}
    assert plan.waits.keys() == {shape for shape, jobs in remaining.items() if jobs}, (
        "each waiting job must have a reason"
    )
    return Plan(plan.placements, {job: wait for shape, wait in plan.waits.items() for job in remaining[shape]})
