"""Decides which waiting job runs on which nodes. All functions are pure: equal jobs and nodes give equal placements.

Jobs are tried by priority, then by age. A job gets all its nodes at once or none, so no two jobs can each hold half.
The first job of a pool may not fit now, although it would fit on empty nodes. Then it reserves the slots and GPUs that
it will get. Other jobs use what is not reserved, so small jobs fill the gaps but never keep a big job waiting forever
(docs/decisions/0012).

Jobs with the same needs stand in one line, because one answer holds for all of them. If the first job of a line cannot
start, no job behind it can, and all of them wait for the same reason. A line is read only as far as its jobs start
(docs/decisions/0019).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush, heapreplace

from footplate.contract.ids import JobId, NodeId
from footplate.contract.lifecycle import Reason
from footplate.contract.messages import Gpu
from service.jobs.installed import Installed
from service.jobs.needs import Needs
from service.store.queue import QueuedRow

MOST_REFUSALS = 3
"""The most refusals in the message of a waiting job."""


@dataclass(frozen=True, slots=True)
class QueueLine:
    """The jobs that wait with the same needs, in the order in which they are tried."""

    shape: str
    """The hash of the needs, which names the line in SQL."""
    needs: Needs
    jobs: Iterable[QueuedRow]


@dataclass(frozen=True, slots=True)
class NodeCapacity:
    """A node as placement sees it, with all of its slots and GPUs and with those that are free."""

    node: NodeId
    boot: str
    pool: str
    slots: int
    free_slots: int
    gpus: tuple[Gpu, ...] = ()
    free_gpus: tuple[Gpu, ...] = ()
    is_open: bool = True
    """True if the node takes work now. If not, jobs that fit it wait for it, instead of for a node that is missing."""
    closed: str | None = None
    """The reason for which the node takes no new work now, as a sentence. None if the node takes work."""
    refused: str | None = None
    """The reason for which the node gets no work at all, as a sentence, else None. A refused node gets no jobs, but the
    message of a waiting job may name it."""
    name: str = ""
    installed: Installed | None = field(default=None, compare=False)
    """The installed components. None if the node has not announced them."""

    def lacks(self, needs: Needs) -> str | None:
        """Returns a sentence with the components, packages and secrets that the node lacks for these needs, or None."""
        names = self.installed.missing_needs(needs.requirements) if self.installed and needs.requirements else ()
        return f"{self.name} has no {', no '.join(names)}" if names else None


@dataclass(frozen=True, slots=True)
class NodeShare:
    """The slots and GPUs that a placement takes on one node."""

    node: NodeId
    boot: str
    slots: int
    gpus: tuple[str, ...]
    """The UUIDs of the GPUs."""


@dataclass(frozen=True, slots=True)
class Placement:
    job_id: JobId
    shares: tuple[NodeShare, ...]
    version: int = 1
    """The job's version when it was read. A job that has changed since then is not started."""


@dataclass(frozen=True, slots=True)
class Wait:
    """The reason for which the jobs of a line wait."""

    reason: Reason
    message: str


@dataclass(slots=True)
class PlacementPlan:
    placements: list[Placement] = field(default_factory=list)
    waits: dict[str, Wait] = field(default_factory=dict)
    """The reason to wait by shape, for each line with a job that was not placed."""


def place(lines: Iterable[QueueLine], nodes: Sequence[NodeCapacity]) -> PlacementPlan:
    """Returns placements in the order in which they were decided, and why the other jobs of each line wait."""
    capacities = [FreeCapacity(capacity) for capacity in sorted(nodes, key=lambda capacity: capacity.node)]
    nodes_by_shape: dict[str, _SuitableNodes] = {}
    pools_with_reservation: set[str] = set()
    plan = PlacementPlan()
    heads = []
    for line in lines:
        jobs_behind = iter(line.jobs)
        if (first := next(jobs_behind, None)) is not None:
            # A position contains the job's id, so no two are equal, and the heap never compares the items behind them.
            heads.append((first.position, first, line, jobs_behind))
    heapify(heads)
    while heads:
        _, job, line, jobs_behind = heads[0]
        if (suitable := nodes_by_shape.get(line.shape)) is None:
            suitable = nodes_by_shape[line.shape] = _SuitableNodes(line.needs, capacities)
        if suitable.exists and (chosen_nodes := suitable.choose()) is not None:
            shares = tuple(capacity.take(line.needs) for capacity in chosen_nodes)
            plan.placements.append(Placement(job.id, shares, job.version))
            if (next_job := next(jobs_behind, None)) is not None:
                heapreplace(heads, (next_job.position, next_job, line, jobs_behind))
                continue
        else:
            plan.waits[line.shape] = suitable.wait
            if suitable.exists and line.needs.pool not in pools_with_reservation and suitable.reserve():
                pools_with_reservation.add(line.needs.pool)
        heappop(heads)
    return plan


def explain(needs: Needs, nodes: Sequence[NodeCapacity]) -> Placement | Wait:
    """Returns the placement that a job of this shape would get now, or the reason for which it would wait."""
    alone = QueueLine("", needs, [QueuedRow(JobId(""), priority=0, queued_at=0, version=1)])
    plan = place([alone], nodes)
    return plan.placements[0] if plan.placements else plan.waits[alone.shape]


@dataclass(frozen=True, slots=True)
class RunningSession:
    """A serving session and what it holds on its node."""

    job_id: JobId
    priority: int
    share: NodeShare


def to_end(
    waiting: Iterable[tuple[int, Needs]], nodes: Sequence[NodeCapacity], placements: Iterable[Placement],
    sessions: Iterable[RunningSession],
) -> list[JobId]:  # fmt: skip
    """Returns the serving sessions that should end, so that each waiting job of equal or higher priority fits.

    `waiting` has the priority and the needs of the first job of each line that waits, and `placements` are those of the
    same plan. No session ends for a job that would wait in any case.
    """
    capacities = {capacity.node: FreeCapacity(capacity) for capacity in nodes}
    for placement in placements:
        take_all(capacities, placement.shares)
    remaining = list(sessions)
    ending: list[JobId] = []
    for priority, needs in waiting:
        yielding = [session for session in remaining if session.priority <= priority]
        suitable = _SuitableNodes(needs, list(capacities.values()))
        sessions_to_end = suitable.to_end(yielding) if suitable.exists else []
        remaining = [session for session in remaining if session not in sessions_to_end]
        ending += [session.job_id for session in sessions_to_end]
    return ending


def take_all(capacities: Mapping[NodeId, FreeCapacity], shares: Sequence[NodeShare]) -> bool:
    """Subtracts the planned shares from the free slots and GPUs of their nodes, and returns True.

    Returns False and subtracts nothing if one of the nodes no longer has its share free.
    """
    if not all(share.node in capacities and capacities[share.node].has(share) for share in shares):
        return False
    for share in shares:
        capacities[share.node].give(share)
    return True


class FreeCapacity:
    """A node with the slots and GPUs that are still free while a plan is made. They only become fewer."""

    __slots__ = ("capacity", "gpus", "slots")

    def __init__(self, capacity: NodeCapacity) -> None:
        self.capacity = capacity
        self.slots = capacity.free_slots
        self.gpus = list(capacity.free_gpus)

    def fits(self, needs: Needs) -> bool:
        return self.capacity.is_open and _fits(needs, self.capacity, self.slots, self.gpus)

    def take(self, needs: Needs) -> NodeShare:
        """Reserves what the job needs. If the node has less, reserves all that is free."""
        count = gpu_count(needs, self.capacity)
        gpus = tuple(gpu.uuid for gpu in self.gpus if _suits(needs, gpu))[:count]
        share = NodeShare(self.capacity.node, self.capacity.boot, slot_count(needs, self.capacity), gpus)
        self.give(share)
        return share

    def has(self, share: NodeShare) -> bool:
        """Returns True if the share is still free, and if the node takes work and was not restarted."""
        is_same = self.capacity.boot == share.boot and self.capacity.is_open
        return is_same and self.slots >= share.slots and {gpu.uuid for gpu in self.gpus} >= set(share.gpus)

    def to_end(self, needs: Needs, sessions: Iterable[RunningSession]) -> list[RunningSession] | None:
        """Returns the sessions on this node that must end before the needs fit. None if they fit in no case."""
        slots, gpus, ending = self.slots, list(self.gpus), list[RunningSession]()
        sessions_here = [session for session in sessions if session.share.node == self.capacity.node]
        while self.capacity.is_open:
            if _fits(needs, self.capacity, slots, gpus):
                return ending
            if len(ending) == len(sessions_here):
                break
            ending.append(session := sessions_here[len(ending)])
            slots += session.share.slots
            gpus += [gpu for gpu in self.capacity.gpus if gpu.uuid in session.share.gpus]
        return None

    def give(self, share: NodeShare) -> None:
        self.slots -= min(share.slots, self.slots)
        self.gpus = [gpu for gpu in self.gpus if gpu.uuid not in share.gpus]

    def missing(self, needs: Needs) -> int:
        """Returns the number of slots and GPUs that must become free on this node before it fits the needs."""
        gpus = gpu_count(needs, self.capacity) - sum(_suits(needs, gpu) for gpu in self.gpus)
        return max(0, gpus) + max(0, slot_count(needs, self.capacity) - self.slots)


class _SuitableNodes:
    """The nodes for all jobs with the same needs.

    If a job on several nodes does not say how many GPUs it needs, its nodes all have GPUs or all have no GPUs. Ranks
    with and without a GPU cannot train together.
    """

    def __init__(self, needs: Needs, capacities: list[FreeCapacity]) -> None:
        together = [
            [free for free in capacities if free.capacity.gpus],
            [free for free in capacities if not free.capacity.gpus],
        ]
        alike = together if needs.nodes > 1 and needs.gpus_per_node is None else [capacities]
        self._kinds = [_AlikeNodes(needs, alike_nodes) for alike_nodes in alike]
        # If no nodes fit, the message is about the kind of nodes, with or without GPUs, that is nearest to fitting.
        self.wait = max(self._kinds, key=lambda kind: (kind.exists, kind.count)).wait
        self.exists = any(kind.exists for kind in self._kinds)

    def choose(self) -> list[FreeCapacity] | None:
        return next((capacities for kind in self._kinds if (capacities := kind.choose()) is not None), None)

    def reserve(self) -> bool:
        """Reserves nodes for the first job. Returns False if too few nodes take work, so that nothing is reserved."""
        return any(kind.reserve() for kind in self._kinds)

    def to_end(self, sessions: Sequence[RunningSession]) -> list[RunningSession]:
        """Returns the smallest set of sessions that must end so that the first job fits, or [] if no set is enough."""
        return min(
            (ending for kind in self._kinds if (ending := kind.to_end(sessions)) is not None), key=len, default=[]
        )


class _AlikeNodes:
    """Nodes whose ranks can train together, for all jobs with the same needs. A full node is dropped from the heap."""

    def __init__(self, needs: Needs, capacities: list[FreeCapacity]) -> None:
        self.needs = needs
        suiting = [free for free in capacities if _fits(needs, free.capacity, free.capacity.slots, free.capacity.gpus)]
        lacks = {free.capacity.node: why for free in suiting if (why := free.capacity.lacks(needs)) is not None}
        having = [free for free in suiting if free.capacity.node not in lacks]
        fitting = [free for free in having if free.capacity.refused is None]
        self.count = len(fitting)
        self.exists = self.count >= needs.nodes
        refusals = [free.capacity.refused for free in having if free.capacity.refused is not None]
        closed = [free.capacity.closed for free in fitting if free.capacity.closed is not None]
        others = [] if self.exists else capacities
        short = [why for free in others if (why := _too_few_slots(needs, free.capacity)) is not None]
        if (pools := {free.capacity.pool for free in capacities}) and needs.pool not in pools:
            short = [f"the nodes are in {', '.join(map(repr, sorted(pools)))}: FOOTPLATE_POOL sets a node's pool"]
        self.wait = _wait(needs, self.exists, len(fitting), [*refusals, *lacks.values(), *short], closed)
        self._fitting = fitting
        self._heap = [(self._sort_key(free), order, free) for order, free in enumerate(fitting) if free.fits(needs)]
        heapify(self._heap)

    def choose(self) -> list[FreeCapacity] | None:
        """Returns the nodes for one job with these needs, or None if too few fit. Updates old sort keys in the heap."""
        if len(self._heap) < self.needs.nodes:
            return None
        entries: list[tuple[int, int, FreeCapacity]] = []
        while self._heap and len(entries) < self.needs.nodes:
            old_key, order, free = heappop(self._heap)
            if not free.fits(self.needs):
                continue
            if (key := self._sort_key(free)) != old_key:
                heappush(self._heap, (key, order, free))
                continue
            entries.append((old_key, order, free))
        for entry in entries:
            heappush(self._heap, entry)
        return [free for _, _, free in entries] if len(entries) == self.needs.nodes else None

    def reserve(self) -> bool:
        """Reserves the nodes on which the fewest slots and GPUs must become free.

        The next plan reserves the same nodes again, because no other job gets their slots meanwhile.

        Nothing is reserved for a job that waits for a node that takes no work.
        """
        working = [free for free in self._fitting if free.capacity.is_open]
        nearest = sorted(working, key=lambda free: free.missing(self.needs))[: self.needs.nodes]
        if len(nearest) < self.needs.nodes:
            return False
        for free in nearest:
            free.take(self.needs)
        return True

    def to_end(self, sessions: Sequence[RunningSession]) -> list[RunningSession] | None:
        """Returns the smallest set of sessions that must end so that the job fits, or None if no set is enough."""
        by_node = [ending for free in self._fitting if (ending := free.to_end(self.needs, sessions)) is not None]
        if len(by_node) < self.needs.nodes:
            return None
        nearest = sorted(by_node, key=len)[: self.needs.nodes]
        return [session for ending in nearest for session in ending]

    def _sort_key(self, free: FreeCapacity) -> int:
        """Returns the sorting key of a node: the node with the smallest key gets the next job.

        GPU jobs fill nodes up, and CPU jobs spread over nodes without GPUs.
        """
        if gpu_count(self.needs, free.capacity):
            return len(free.gpus)
        return 1_000_000 * bool(free.capacity.gpus) - free.slots


def gpu_count(needs: Needs, capacity: NodeCapacity) -> int:
    """Returns the number of GPUs that a job with these needs gets on this node."""
    if needs.gpus_per_node is not None:
        return needs.gpus_per_node
    return (needs.processes_per_node or 1) if capacity.gpus else 0


def slot_count(needs: Needs, capacity: NodeCapacity) -> int:
    """Returns the number of slots that a job with these needs gets on this node, one for each rank."""
    return needs.processes_per_node or max(1, gpu_count(needs, capacity))


def _fits(needs: Needs, capacity: NodeCapacity, slots: int, gpus: Sequence[Gpu]) -> bool:
    if capacity.pool != needs.pool or slots < slot_count(needs, capacity):
        return False
    gpus_needed = gpu_count(needs, capacity)
    if not gpus_needed:
        # The job gets no GPU here, so a wanted GPU name rules the node out. Any precision fits: CPUs have autocast.
        return needs.gpu is None or needs.gpus_per_node == 0
    return gpus_needed <= len(gpus) and sum(_suits(needs, gpu) for gpu in gpus) >= gpus_needed


def _too_few_slots(needs: Needs, capacity: NodeCapacity) -> str | None:
    """Returns a sentence if the node lacks only slots for these needs, else None."""
    slots = slot_count(needs, capacity)
    if capacity.refused is not None or capacity.slots >= slots or not _fits(needs, capacity, slots, capacity.gpus):
        return None
    has = f"{capacity.slots} slot" + ("" if capacity.slots == 1 else "s")
    return f"{capacity.name or capacity.node} has {has} and {slots} are needed: FOOTPLATE_SLOTS sets how many it has"


def _suits(needs: Needs, gpu: Gpu) -> bool:
    if needs.gpu is not None and needs.gpu.lower() not in gpu.name.lower():
        return False
    return gpu.capability == (0, 0) or gpu.capability >= needs.capability


def _wait(needs: Needs, exists: bool, fitting: int, refusals: list[str], closed_reasons: list[str]) -> Wait:
    if exists:
        return Wait(Reason.CAPACITY, "; ".join([f"waits for capacity: {needs}", *closed_reasons[:MOST_REFUSALS]]))
    nodes = f"only {fitting} such nodes that take work" if fitting != 1 else "only 1 such node that takes work"
    finding = (
        "no node that takes work has it" if needs.nodes == 1 else f"there {'is' if fitting == 1 else 'are'} {nodes}"
    )
    return Wait(Reason.NO_SUCH_SHAPE, "; ".join([f"waits for {needs}: {finding}", *refusals[:MOST_REFUSALS]]))
