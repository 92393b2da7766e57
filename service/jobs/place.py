"""Reads the waiting jobs and the free slots, plans which jobs run on which nodes, and starts these jobs.

`plan_queue` only reads, so it delays no writer. `start` and `queue.explain` write the plan in short transactions.
Jobs and nodes may have changed meanwhile, so `start` reads the jobs and nodes of the plan again.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from pydantic import TypeAdapter
from sqlalchemy import Connection

from footplate.contract.crash_points import Moment, reached
from footplate.contract.ids import Fence, JobId, NodeId
from footplate.contract.lifecycle import JobState, Reason
from footplate.contract.messages import Gpu
from service.jobs.installed import Installed, read_catalogue
from service.jobs.needs import Needs
from service.jobs.placement import (
    FreeCapacity,
    NodeCapacity,
    NodeShare,
    Placement,
    PlacementPlan,
    QueueLine,
    RunningSession,
    place,
    take_all,
    to_end,
)
from service.store import attempts, jobs, nodes, queue
from service.store.queue import LineHead
from service.store.row_types import AttemptRow, JobRow, NodeRow, SourceRow

MOST_CATALOGUES = 256
"""The most parsed catalogues that are cached, which is far more than nodes have. A full cache is emptied."""
_INSTALLED: dict[str, Installed] = {}
_GPUS = TypeAdapter(tuple[Gpu, ...])


@dataclass(frozen=True, slots=True)
class QueueState:
    """The facts about the queue by which control decides if it must plan again.

    While these facts and the nodes are unchanged, another plan would start no job.
    """

    heads: tuple[LineHead, ...]
    """The first job of every line. If this job cannot start, no job behind it in the line can start."""
    held: int
    """The number of sources that hold slots."""
    to_drain: tuple[NodeId, ...]


@dataclass(frozen=True, slots=True)
class QueuePlan:
    """The result of planning: placements to start, new reasons of waiting jobs, and serving sessions to end."""

    queue_state: QueueState
    is_new: bool = True
    """False if the queue is as at the last plan. Then nothing was planned, and the other fields are empty."""
    placements: list[Placement] = field(default_factory=list)
    new_waits: dict[str, tuple[str, str]] = field(default_factory=dict)
    """The new reason and message of waiting jobs, by shape. Shapes for which neither has changed are left out."""
    removed_shapes: set[str] = field(default_factory=set)
    """Shapes that no waiting job has any more."""
    yielding: list[JobId] = field(default_factory=list)
    """The serving sessions whose slots waiting jobs need."""


def plan_queue(conn: Connection, unless: QueueState | None = None) -> QueuePlan:
    """Returns a plan for all waiting jobs. Plans nothing if the state of the queue is equal to `unless`."""
    queue_state = QueueState(queue.heads(conn), attempts.count_open(conn), nodes.to_drain(conn))
    if queue_state == unless:
        return QueuePlan(queue_state, is_new=False)
    lines = [QueueLine(head.shape, _needs(head.needs), queue.line(conn, head)) for head in queue_state.heads]
    capacities = load_capacities(conn) if lines else []
    plan = place(lines, capacities) if lines else PlacementPlan()
    explanations = queue.explanations(conn)
    waits: dict[str, tuple[str, str]] = {shape: (wait.reason, wait.message) for shape, wait in plan.waits.items()}
    new_waits = {shape: wait for shape, wait in waits.items() if explanations.get(shape) != wait}
    yielding = _yielding(conn, queue_state.heads, plan, capacities)
    return QueuePlan(queue_state, True, plan.placements, new_waits, explanations.keys() - waits.keys(), yielding)


def _yielding(
    conn: Connection, heads: Sequence[LineHead], plan: PlacementPlan, capacities: Sequence[NodeCapacity]
) -> list[JobId]:
    """Returns the sessions that should end for the first job of each line. A line whose first job starts is skipped."""
    placed_ids = {placement.job_id for placement in plan.placements}
    waiting_heads = [head for head in heads if head.shape in plan.waits and head.job.id not in placed_ids]
    if not waiting_heads or not (serving := jobs.serving(conn)):
        return []
    sessions = [
        RunningSession(source.job_id, serving[source.job_id], _share(source))
        for source in attempts.open_sources(conn)
        if source.job_id in serving
    ]
    waiting_heads.sort(key=lambda head: head.job.position)
    needs = [(head.job.priority, _needs(head.needs)) for head in waiting_heads]
    return to_end(needs, capacities, plan.placements, sessions)


def _share(source: SourceRow) -> NodeShare:
    return NodeShare(source.node, source.boot, source.slots, tuple(json.loads(source.gpus)))


def start(conn: Connection, placements: Sequence[Placement], now: int) -> list[JobId]:
    """Starts the planned jobs and returns their ids. A job stays queued if the job or its nodes have changed since."""
    node_ids = {share.node for placement in placements for share in placement.shares}
    capacities = {capacity.node: FreeCapacity(capacity) for capacity in load_capacities(conn, node_ids)}
    # All jobs are locked at once in the order of their ids, as in every transaction that locks several jobs.
    queued_jobs = jobs.lock_many(conn, [placement.job_id for placement in placements])
    started_ids = []
    for placement in placements:
        job = queued_jobs.get(placement.job_id)
        if job is None or job.state is not JobState.QUEUED or job.version != placement.version:
            continue
        if not take_all(capacities, placement.shares):
            continue
        _start(conn, job, placement, ", ".join(capacities[share.node].capacity.name for share in placement.shares), now)
        started_ids.append(job.id)
    if started_ids:
        reached(Moment.BEFORE_PLACE_COMMITS)
    return started_ids


def load_capacities(conn: Connection, only: Collection[NodeId] | None = None) -> list[NodeCapacity]:
    """Returns every node that is up, or those in `only`, with its free slots and GPUs.

    Refused and drained nodes are included, so that the reason for which a job waits can name them.
    """
    open_sources: dict[str, list[SourceRow]] = {}
    for source in attempts.open_sources(conn, only):
        open_sources.setdefault(source.node, []).append(source)
    rows = nodes.all_nodes(conn) if only is None else nodes.by_ids(conn, only)
    connected_nodes = [node for node in rows if not node.lost]
    installed_by_hash = _load_installed(conn, {node.catalogue_hash for node in connected_nodes if node.catalogue_hash})
    return [_capacity(node, open_sources.get(node.id, []), installed_by_hash) for node in connected_nodes]


def _load_installed(conn: Connection, hashes: set[str]) -> Mapping[str, Installed]:
    """Returns the parsed catalogue of each hash. Each is cached, because a hash always means the same catalogue."""
    catalogues = {digest: entry for digest in hashes if (entry := _INSTALLED.get(digest)) is not None}
    for digest, body in nodes.catalogues_of(conn, hashes - catalogues.keys()).items():
        catalogues[digest] = Installed(read_catalogue(body))
    if len(_INSTALLED) > MOST_CATALOGUES:
        _INSTALLED.clear()
    _INSTALLED.update(catalogues)
    return catalogues


def _capacity(node: NodeRow, open_sources: list[SourceRow], installed_by_hash: Mapping[str, Installed]) -> NodeCapacity:
    gpus = _gpus(node.gpus)
    busy_uuids = {uuid for source in open_sources for uuid in json.loads(source.gpus)}
    return NodeCapacity(
        node=node.id,
        boot=node.boot,
        pool=node.pool,
        slots=node.slots,
        free_slots=node.slots - sum(source.slots for source in open_sources),
        gpus=gpus,
        free_gpus=tuple(gpu for gpu in gpus if gpu.uuid not in busy_uuids),
        is_open=node.takes_work,
        closed=f"{node.name} has it, and takes no work now: {node.why_not}" if not node.takes_work else None,
        refused=_refusal(node),
        name=node.name,
        installed=installed_by_hash.get(node.catalogue_hash or ""),
    )


def _refusal(node: NodeRow) -> str | None:
    """Returns the reason for which the node gets no jobs until a person or an upgrade changes that, else None."""
    if node.drain_requested:
        return (
            f"{node.name} has it, and is drained until the drain is withdrawn (footplate nodes --undrain {node.name})"
        )
    if node.draining:
        return f"{node.name} has it, and is draining, because its worker is about to stop"
    return f"{node.name} has it, and gets no work: {node.refused}" if node.refused is not None else None


def _start(conn: Connection, job: JobRow, placement: Placement, where: str, now: int) -> None:
    attempt, fence = job.attempt + 1, Fence(job.fence + 1)
    jobs.move(
        conn, job.id, to=JobState.STARTING, expect=[JobState.QUEUED], fence=job.fence, reason=Reason.PLACED, now=now,
        message=f"attempt {attempt} goes to {where}",
        next_attempt=attempt, next_fence=fence, not_before=None,
    )  # fmt: skip
    row = AttemptRow(job_id=job.id, attempt=attempt, fence=fence, placed_at=now)
    sources = [
        SourceRow(
            job_id=job.id, attempt=attempt, source=ordinal, node=share.node, boot=share.boot, slots=share.slots,
            gpus=json.dumps(share.gpus),
        )
        for ordinal, share in enumerate(placement.shares)
    ]  # fmt: skip
    attempts.insert_attempt(conn, row, sources)


_needs = lru_cache(maxsize=4096)(Needs.from_json)
_gpus = lru_cache(maxsize=4096)(_GPUS.validate_json)
