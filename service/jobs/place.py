"""Which waiting job goes where. Pure: the same jobs, nodes and rules give the same placements.

Priority first, then age. A job gets all its nodes at once or none. The first one of a pool that would fit on empty
nodes, but does not fit now, reserves the nodes that it will get; the others use the rest, so that small jobs fill the
gaps and never keep a big one waiting for ever.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush

from contract.ids import JobId, NodeId
from contract.lifecycle import Reason
from contract.messages import Gpu
from service.jobs.needs import Needs

MOST_REFUSALS = 3
"""Told to a job that waits."""


@dataclass(frozen=True, slots=True)
class Waiting:
    job_id: JobId
    needs: Needs
    priority: int
    since: int
    """When it was queued: the older one goes first."""


@dataclass(frozen=True, slots=True)
class Room:
    """A node as placement sees it: what it has, and what of that is free."""

    node: NodeId
    boot: str
    pool: str
    slots: int
    free_slots: int
    gpus: tuple[Gpu, ...] = ()
    free_gpus: tuple[Gpu, ...] = ()
    is_open: bool = True
    """Takes work now. A node that is up but does not, for the moment, still counts as a shape that exists."""
    closed: str | None = None
    """The sentence why it is not open."""
    refused: str | None = None
    """The sentence why it gets no work at all: it counts for nothing, but for explaining a job that waits."""


@dataclass(frozen=True, slots=True)
class Share:
    """One node's part of a placement."""

    node: NodeId
    boot: str
    slots: int
    gpus: tuple[str, ...]
    """UUIDs."""


@dataclass(frozen=True, slots=True)
class Placement:
    job_id: JobId
    shares: tuple[Share, ...]


@dataclass(frozen=True, slots=True)
class Wait:
    """Why a job was not placed."""

    reason: Reason
    message: str


@dataclass(slots=True)
class Plan:
    placements: list[Placement] = field(default_factory=list)
    waits: dict[JobId, Wait] = field(default_factory=dict)


def place(waiting: Iterable[Waiting], nodes: Sequence[Room]) -> Plan:
    """Placements, in the order in which they were decided, and for every other job the reason why it waits."""
    rooms = [_Free(room) for room in sorted(nodes, key=lambda room: room.node)]
    shapes: dict[Needs, _Shape] = {}
    pools_with_reservation: set[str] = set()
    plan = Plan()
    for job in sorted(waiting, key=lambda job: rank(job.priority, job.since, job.job_id)):
        if (shape := shapes.get(job.needs)) is None:
            shape = shapes[job.needs] = _Shape(job.needs, rooms)
        if not shape.exists:
            plan.waits[job.job_id] = shape.wait
        elif (chosen := shape.choose()) is not None:
            shares = tuple(room.take(job.needs) for room in chosen)
            plan.placements.append(Placement(job.job_id, shares))
        else:
            plan.waits[job.job_id] = shape.wait
            if job.needs.pool not in pools_with_reservation:
                pools_with_reservation.add(job.needs.pool)
                shape.reserve()
    return plan


def rank(priority: int, since: int, job_id: JobId) -> tuple[int, int, JobId]:
    """Its place among those that wait: by this they are sorted."""
    return -priority, since, job_id


def explain(needs: Needs, nodes: Sequence[Room]) -> Placement | Wait:
    """Where a job of this shape would go at this moment, or why it would wait."""
    job = Waiting(JobId(""), needs, priority=0, since=0)
    plan = place([job], nodes)
    return plan.placements[0] if plan.placements else plan.waits[job.job_id]


class _Free:
    """A node while placing: what is free shrinks, and never grows."""

    __slots__ = ("gpus", "is_reserved", "room", "slots")

    def __init__(self, room: Room) -> None:
        self.room = room
        self.slots = room.free_slots
        self.gpus = list(room.free_gpus)
        self.is_reserved = False

    def fits(self, needs: Needs) -> bool:
        if self.is_reserved or not self.room.is_open:
            return False
        return _fits(needs, self.room, self.slots, self.gpus)

    def take(self, needs: Needs) -> Share:
        count = gpu_count(needs, self.room)
        taken = [gpu for gpu in self.gpus if _suits(needs, gpu)][:count]
        self.gpus = [gpu for gpu in self.gpus if gpu not in taken]
        slots = slot_count(needs, self.room)
        self.slots -= slots
        return Share(self.room.node, self.room.boot, slots, tuple(gpu.uuid for gpu in taken))


class _Shape:
    """All jobs with the same needs: their candidates are found once, and dropped as they fill up."""

    def __init__(self, needs: Needs, rooms: list[_Free]) -> None:
        self.needs = needs
        suiting = [free for free in rooms if _fits(needs, free.room, free.room.slots, free.room.gpus)]
        fitting = [free for free in suiting if free.room.refused is None]
        self.exists = len(fitting) >= needs.nodes
        refusals = [free.room.refused for free in suiting if free.room.refused is not None]
        closed = [free.room.closed for free in fitting if free.room.closed is not None]
        self.wait = _wait(needs, self.exists, len(fitting), refusals, closed)
        self._fitting = fitting
        self._heap = [(self._rank(free), order, free) for order, free in enumerate(fitting) if free.fits(needs)]
        heapify(self._heap)

    def choose(self) -> list[_Free] | None:
        """As many nodes as such a job needs, or None. Ranks in the heap may be out of date, and are renewed."""
        if len(self._heap) < self.needs.nodes:
            return None
        chosen: list[tuple[int, int, _Free]] = []
        while self._heap and len(chosen) < self.needs.nodes:
            rank, order, free = heappop(self._heap)
            if not free.fits(self.needs):
                continue
            if (now := self._rank(free)) != rank:
                heappush(self._heap, (now, order, free))
                continue
            chosen.append((rank, order, free))
        for entry in chosen:
            heappush(self._heap, entry)
        return [free for _, _, free in chosen] if len(chosen) == self.needs.nodes else None

    def reserve(self) -> None:
        """The nodes that come nearest to it: the same ones the next time, since only they drain."""
        nearest = sorted(self._fitting, key=lambda free: (not free.room.is_open, -len(free.gpus), -free.slots))
        for free in nearest[: self.needs.nodes]:
            free.is_reserved = True

    def _rank(self, free: _Free) -> int:
        """GPUs are packed, so that whole nodes stay whole for who needs one; CPU work is spread, away from GPUs."""
        if gpu_count(self.needs, free.room):
            return len(free.gpus)
        return 1_000_000 * bool(free.room.gpus) - free.slots


def gpu_count(needs: Needs, room: Room) -> int:
    """How many GPUs one node gives to such a job."""
    if needs.gpus_per_node is not None:
        return needs.gpus_per_node
    return (needs.processes_per_node or 1) if room.gpus else 0


def slot_count(needs: Needs, room: Room) -> int:
    """One slot for each rank."""
    return needs.processes_per_node or max(1, gpu_count(needs, room))


def _fits(needs: Needs, room: Room, slots: int, gpus: Sequence[Gpu]) -> bool:
    if room.pool != needs.pool or slots < slot_count(needs, room):
        return False
    wanted = gpu_count(needs, room)
    if not wanted:
        # Without a GPU there is none of that name. Precision is no matter: the CPU has its own autocast.
        return needs.gpu is None or needs.gpus_per_node == 0
    return wanted <= len(gpus) and sum(_suits(needs, gpu) for gpu in gpus) >= wanted


def _suits(needs: Needs, gpu: Gpu) -> bool:
    if needs.gpu is not None and needs.gpu.lower() not in gpu.name.lower():
        return False
    return gpu.capability == (0, 0) or gpu.capability >= needs.capability


def _wait(needs: Needs, exists: bool, fitting: int, refusals: list[str], closed: list[str]) -> Wait:
    if exists:
        return Wait(Reason.CAPACITY, "; ".join([f"waits for room: {needs}", *closed[:MOST_REFUSALS]]))
    found = "no node that takes work has it" if needs.nodes == 1 else f"{fitting} that take work fit"
    return Wait(Reason.NO_SUCH_SHAPE, "; ".join([f"waits for {needs}: {found}", *refusals[:MOST_REFUSALS]]))
