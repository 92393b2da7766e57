"""Load what waits and what is free, place it, write it down: one transaction."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from pydantic import TypeAdapter, ValidationError
from sqlalchemy import Connection

from contract.components import Catalogue
from contract.ids import Fence, JobId, NodeId
from contract.lifecycle import JobState, Reason
from contract.messages import SHARES_JOBS, Gpu
from contract.moments import Moment, reached
from service.jobs.installed import Installed
from service.jobs.needs import Needs
from service.jobs.place import Placement, Room, Waiting, place
from service.store import attempts, jobs, nodes, queue
from service.store.queue import QueuedRow
from service.store.rows import AttemptRow, NodeRow, SourceRow

MOST_CATALOGUES = 256
"""Nodes that come and go have few kinds; beyond that all are read again."""
log = logging.getLogger(__name__)
_INSTALLED: dict[str, Installed] = {}
_GPUS = TypeAdapter(tuple[Gpu, ...])


@dataclass(slots=True)
class Placed:
    jobs: list[JobId] = field(default_factory=list)
    waiting: int = 0


def place_waiting(conn: Connection, now: int) -> Placed:
    """What was placed now. A job that changed since it was read stays where it is."""
    queued = queue.waiting(conn, now)
    if not queued:
        return Placed()
    placed = _place(conn, queued, load_rooms(conn), now)
    if len(queued) == queue.MOST:
        rooms = load_rooms(conn)
        if any(room.is_open and room.free_slots for room in rooms):
            # What does not fit for thousands of jobs may fit for those behind them.
            more = _place(conn, queue.waiting_of_each_shape(conn, now), rooms, now)
            placed = Placed(placed.jobs + more.jobs, more.waiting)
        queue.explain_the_rest(conn, now)
    if placed.jobs:
        reached(Moment.BEFORE_PLACE_COMMITS)
    return placed


def _place(conn: Connection, queued: list[QueuedRow], rooms: list[Room], now: int) -> Placed:
    wanted = [Waiting(job.id, _needs(job.needs), job.priority, job.queued_at) for job in queued]
    plan = place(wanted, rooms)
    names = {node.id: node.name for node in nodes.everyone(conn)} if plan.placements else {}
    placed = [one.job_id for one in plan.placements if _start(conn, one, names, now)]
    for job in queued:
        wait = plan.waits.get(job.id)
        if wait is not None and (wait.reason, wait.message) != (job.reason, job.message):
            queue.explain(conn, job.id, wait.reason, wait.message)
    return Placed(placed, len(plan.waits))


def load_rooms(conn: Connection) -> list[Room]:
    """Every node that is up, with what its open attempts leave free; those that are turned away or drained as well, so
    that a job that waits can be told of them."""
    taken: dict[str, list[SourceRow]] = {}
    for part in attempts.open_sources(conn):
        taken.setdefault(part.node, []).append(part)
    up = [node for node in nodes.everyone(conn) if not node.lost]
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


def _start(conn: Connection, placement: Placement, names: Mapping[NodeId, str], now: int) -> bool:
    job = jobs.lock(conn, placement.job_id)
    if job is None or job.state is not JobState.QUEUED:
        return False
    attempt, fence = job.attempt + 1, Fence(job.fence + 1)
    where = ", ".join(names.get(share.node, share.node) for share in placement.shares)
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
    return True


_needs = lru_cache(maxsize=4096)(Needs.from_json)
_gpus = lru_cache(maxsize=4096)(_GPUS.validate_json)
