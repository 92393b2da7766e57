"""Looks at what waits and what is free, and starts what can start.

`look` only reads: it costs nobody who writes. `start` and `queue.explain` write what it found, in short transactions.
Meanwhile the world may have changed, so `start` looks again at the few jobs and nodes that it is about.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from pydantic import TypeAdapter, ValidationError
from sqlalchemy import Connection

from footplate.contract.components import Catalogue
from footplate.contract.crash_points import Moment, reached
from footplate.contract.ids import Fence, JobId, NodeId
from footplate.contract.lifecycle import JobState, Reason
from footplate.contract.messages import SHARES_JOBS, Gpu
from service.jobs.installed import Installed
from service.jobs.needs import Needs
from service.jobs.placement import Free, Line, Placement, Plan, Room, Waiting, place
from service.store import attempts, jobs, nodes, queue
from service.store.queue import Head, QueuedRow
from service.store.rows import AttemptRow, JobRow, NodeRow, SourceRow

MOST_CATALOGUES = 256
"""Nodes that come and go have few kinds; beyond that all are read again."""
log = logging.getLogger(__name__)
_INSTALLED: dict[str, Installed] = {}
_GPUS = TypeAdapter(tuple[Gpu, ...])


@dataclass(frozen=True, slots=True)
class Glimpse:
    """What has to change before another look can find something else to start, but for nodes that come or change."""

    heads: tuple[Head, ...]
    """The first job of every line: if the first one cannot start, none behind it can."""
    held: int
    """Parts of attempts that hold slots."""
    to_drain: tuple[NodeId, ...]


@dataclass(frozen=True, slots=True)
class Look:
    """What one look found."""

    glimpse: Glimpse
    is_news: bool = True
    """False: nothing has changed, and nothing else was looked at."""
    placements: list[Placement] = field(default_factory=list)
    changed: dict[str, tuple[str, str]] = field(default_factory=dict)
    """Reason and message of the shapes that wait for something else than before."""
    gone: set[str] = field(default_factory=set)
    """Shapes of which no job waits any more."""


def look(conn: Connection, unless: Glimpse | None = None) -> Look:
    """Reads the heads of all lines and the nodes, and plans. Stops early if all is as in `unless`."""
    glimpse = Glimpse(queue.heads(conn), attempts.count_open(conn), nodes.to_drain(conn))
    if glimpse == unless:
        return Look(glimpse, is_news=False)
    lines = [Line(head.shape, _jobs(_needs(head.needs), queue.line(conn, head))) for head in glimpse.heads]
    plan = place(lines, load_rooms(conn)) if lines else Plan()
    was = queue.explanations(conn)
    waits = {shape: (wait.reason.value, wait.message) for shape, wait in plan.waits.items()}
    changed = {shape: wait for shape, wait in waits.items() if was.get(shape) != wait}
    return Look(glimpse, True, plan.placements, changed, was.keys() - waits.keys())


def _jobs(needs: Needs, rows: Iterable[QueuedRow]) -> Iterator[Waiting]:
    return (Waiting(row.id, needs, row.priority, row.queued_at, row.version) for row in rows)


def start(conn: Connection, placements: Sequence[Placement], now: int) -> list[JobId]:
    """Returns the jobs that it started. One that has changed since the look, or whose nodes have, stays where it is."""
    wanted = {share.node for placement in placements for share in placement.shares}
    rooms = {room.node: room for room in load_rooms(conn, wanted)}
    free = Free(rooms.values())
    # All locked at once in the order of their ids, as everybody does who locks many.
    queued = jobs.lock_many(conn, [placement.job_id for placement in placements])
    started = []
    for placement in placements:
        job = queued.get(placement.job_id)
        if job is None or job.state is not JobState.QUEUED or job.version != placement.version:
            continue
        if not free.take(placement.shares):
            continue
        _start(conn, job, placement, ", ".join(rooms[share.node].name for share in placement.shares), now)
        started.append(job.id)
    if started:
        reached(Moment.BEFORE_PLACE_COMMITS)
    return started


def load_rooms(conn: Connection, only: Collection[NodeId] | None = None) -> list[Room]:
    """Every node that is up (of these nodes, where they are named), with what its open attempts leave free. Nodes that
    are turned away or drained are among them, so that a job that waits can be told of them."""
    taken: dict[str, list[SourceRow]] = {}
    for part in attempts.open_sources(conn, only):
        taken.setdefault(part.node, []).append(part)
    up = [node for node in (nodes.everyone(conn) if only is None else nodes.some(conn, only)) if not node.lost]
    installed = _load_installed(conn, {node.catalogue_hash for node in up if node.catalogue_hash})
    return [_room(node, taken.get(node.id, []), installed) for node in up]


def _load_installed(conn: Connection, hashes: set[str]) -> Mapping[str, Installed]:
    """A catalogue never changes under its hash: it is read and understood once."""
    known = {digest: one for digest in hashes if (one := _INSTALLED.get(digest)) is not None}
    for digest, body in nodes.catalogues_of(conn, hashes - known.keys()).items():
        known[digest] = Installed(_understood(body))
    if len(_INSTALLED) > MOST_CATALOGUES:
        _INSTALLED.clear()
    _INSTALLED.update(known)
    return known


def _understood(body: dict[str, Any]) -> Catalogue | None:
    try:
        return Catalogue.model_validate(body)
    except ValidationError as error:
        log.warning("a node tells what it has in a way that nobody understands: %s", error)
        return None


def _room(node: NodeRow, taken: list[SourceRow], installed: Mapping[str, Installed]) -> Room:
    gpus = _gpus(node.gpus)
    busy = {uuid for part in taken for uuid in json.loads(part.gpus)}
    return Room(
        node=node.id,
        boot=node.boot,
        pool=node.pool,
        slots=node.slots,
        free_slots=node.slots - sum(part.slots for part in taken),
        gpus=gpus,
        free_gpus=tuple(gpu for gpu in gpus if gpu.uuid not in busy),
        is_open=node.takes_work,
        closed=f"{node.name} has it, and takes no work now: {node.why_not}" if not node.takes_work else None,
        refused=_refusal(node),
        shares_jobs=node.protocol >= SHARES_JOBS,
        name=node.name,
        installed=installed.get(node.catalogue_hash or ""),
    )


def _refusal(node: NodeRow) -> str | None:
    """Why nothing is planned for it, other than for one that takes no work for a moment."""
    if node.drain_requested:
        return f"{node.name} has it, and is drained until that is taken back (footplate nodes --undrain {node.name})"
    if node.draining:
        return f"{node.name} has it, and is draining: it goes away"
    return f"{node.name} has it, and gets no work: {node.refused}" if node.refused is not None else None


def _start(conn: Connection, job: JobRow, placement: Placement, where: str, now: int) -> None:
    attempt, fence = job.attempt + 1, Fence(job.fence + 1)
    jobs.move(
        conn, job.id, to=JobState.STARTING, expect=[JobState.QUEUED], fence=job.fence, reason=Reason.PLACED, now=now,
        message=f"attempt {attempt} goes to {where}",
        next_attempt=attempt, next_fence=fence, not_before=None,
    )  # fmt: skip
    row = AttemptRow(
        job_id=job.id, attempt=attempt, fence=fence, placed_at=now, claimed_at=None, running_at=None, ended_at=None,
        ending=None, reason=None, error=None, result=None, running_ms=0,
    )  # fmt: skip
    parts = [
        SourceRow(
            job_id=job.id, attempt=attempt, source=source, node=share.node, boot=share.boot, slots=share.slots,
            gpus=json.dumps(share.gpus), claim=None, rung_at=None, claimed_at=None, running_at=None, watermark=0,
            ended_at=None, done=None,
        )
        for source, share in enumerate(placement.shares)
    ]  # fmt: skip
    attempts.insert_attempt(conn, row, parts)


_needs = lru_cache(maxsize=4096)(Needs.from_json)
_gpus = lru_cache(maxsize=4096)(_GPUS.validate_json)
