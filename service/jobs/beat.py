"""Answers heartbeats. A reply says if the attempt is still current, which events SQL has, and if it must stop."""

from __future__ import annotations

import json
from collections.abc import Callable

from sqlalchemy import Connection

from footplate.contract.events import Kind
from footplate.contract.lifecycle import Desired, JobState, Reason, StopMode
from footplate.contract.messages import PROTOCOL, AttemptBeat, AttemptReply, NodeBeat, NodeReply, Stop
from service.jobs import multi_node
from service.jobs.conclude import Effects
from service.jobs.rescue import lose
from service.jobs.stopping import is_claimed, request_stop, withdraw
from service.settings import ServiceSettings
from service.store import attempts, checkpoints, commands, events, jobs, nodes
from service.store.row_types import UNREADABLE_STORE, JobRow, NodeRow, SourceRow

SUPPORTED_PROTOCOLS = (PROTOCOL, PROTOCOL - 1)
"""The versions of the messages between nodes and control that this control understands."""


def protocol_refusal(protocol: int) -> str | None:
    """Returns the reason for which a node with this protocol version gets no work, or None if the version is known."""
    if protocol in SUPPORTED_PROTOCOLS:
        return None
    return (
        f"it uses protocol {protocol}, and this service uses {PROTOCOL - 1} or {PROTOCOL}: install the service's "
        "version of Footplate on the node"
    )


StopLeft = Callable[[JobRow], float]
"""A function that returns the seconds that a stopping job has left before it is killed, by the caller's clock."""


def attempt_beat(conn: Connection, beat: AttemptBeat, now: int, stop_left: StopLeft) -> AttemptReply:
    """Returns the reply to an attempt's heartbeat.

    An attempt that has not ended is superseded if its number, fence or claim is not the one that holds the job now.
    """
    job = jobs.peek(conn, beat.job)
    if job is None:
        return AttemptReply(claim=beat.claim, number=beat.number, superseded=True, closed=True)
    sources = attempts.sources_of(conn, beat.job, beat.attempt)
    source = next((row for row in sources if row.source == beat.source), None)
    watermark = source.watermark if source else 0
    if source is None or not holds(job, source, beat.attempt, beat.fence, beat.claim):
        is_done = source is not None and source.claim == beat.claim and source.done is not None
        is_closed = source is None or is_done or job.state.is_terminal
        if source is not None and source.claim == beat.claim and not is_done and not job.state.is_terminal:
            _note_superseded(conn, beat, now)
        return AttemptReply(
            claim=beat.claim, number=beat.number, superseded=not is_done, watermark=watermark, closed=is_closed
        )
    stop = multi_node.stop_of(sources) or stop_of(job, stop_left)
    stored_step = checkpoints.stored_step(conn, job.id, job.attempt)
    held_steps = [checkpoint.step for checkpoint in checkpoints.held(conn, job.id) if checkpoint.attempt == job.attempt]
    return AttemptReply(
        claim=beat.claim, number=beat.number, stop=stop, watermark=watermark, stored_step=stored_step,
        commands=commands.undone(conn, job.id, after=beat.last_command), rendezvous=multi_node.rendezvous(sources),
        held_steps=sorted(set(held_steps)),
    )  # fmt: skip


def _note_superseded(conn: Connection, beat: AttemptBeat, now: int) -> None:
    """Writes a note about a superseded attempt, but only once, although this attempt may send several heartbeats."""
    text = (
        f"attempt {beat.attempt} reported again after it was declared lost; it is stopped, and its events do not count"
    )
    if not events.has_note(conn, beat.job, text):
        events.append(conn, beat.job, Kind.NOTE, {"message": text, "code": "superseded"}, now)


def holds(job: JobRow, source: SourceRow, attempt: int, fence: int, claim: str) -> bool:
    """Returns True if this claim of this attempt holds the job now, so that its events and heartbeats count."""
    is_current = job.state.holds_slots and (job.attempt, job.fence) == (attempt, fence)
    return is_current and source.attempt == attempt and source.claim == claim and source.ended_at is None


def stop_of(job: JobRow, stop_left: StopLeft) -> Stop | None:
    """Returns the stop request for the worker of a stopping job, or None if the job is not stopping."""
    if job.state is not JobState.STOPPING or job.stop_mode is None:
        return None
    because = "time_limit" if job.reason is Reason.TIME_LIMIT else "drain"
    if job.desired is not Desired.RUN:
        because = "cancel" if job.desired is Desired.CANCEL else "pause"
    return Stop(because=because, mode=job.stop_mode, within_seconds=max(0.0, stop_left(job)))


def node_beat(conn: Connection, beat: NodeBeat, now: int, settings: ServiceSettings, effects: Effects) -> NodeReply:
    """Returns the reply to a node's heartbeat. Adds the changes of jobs to `effects`."""
    old_row = nodes.find(conn, beat.node)
    if old_row is not None and beat.boot < old_row.boot:
        why = f"node {beat.node} was started again under a later boot id, so this older worker gets no work"
        return NodeReply(number=beat.number, refused=why)
    if beat.catalogue is not None and beat.catalogue_hash is not None:
        nodes.keep_catalogue(conn, beat.catalogue_hash, beat.catalogue, now)
    row = _row(conn, beat, old_row, now)
    has_changed = _keep(conn, row, old_row)
    effects.has_new_capacity |= has_changed and row.takes_work
    for source in attempts.open_sources(conn, [beat.node]):
        if source.claim is not None and source.boot != beat.boot:
            lose(conn, source.job_id, source.attempt, "its node was started again", now, settings, effects)
        elif any(
            (attempt.job, attempt.attempt, attempt.claim) == (source.job_id, source.attempt, source.claim)
            for attempt in beat.dead
        ):
            why = "the node reported that its supervisor died"
            lose(conn, source.job_id, source.attempt, why, now, settings, effects)
        elif row.draining or row.drain_requested:
            _drain(conn, source, beat.name, now, settings, effects)
    digest = beat.catalogue_hash
    return NodeReply(
        number=beat.number,
        catalogue_known=digest if digest is not None and nodes.knows_catalogue(conn, digest) else None,
        drain=row.drain_requested,
        refused=row.refused or (None if row.store_ok else row.trouble or UNREADABLE_STORE),
    )


def _row(conn: Connection, beat: NodeBeat, old_row: NodeRow | None, now: int) -> NodeRow:
    is_new_boot = old_row is not None and old_row.boot != beat.boot
    return NodeRow(
        id=beat.node,
        name=beat.name,
        boot=beat.boot,
        pool=beat.pool,
        slots=beat.slots,
        gpus=json.dumps([gpu.model_dump() for gpu in beat.gpus]),
        lost=False,
        draining=beat.draining,
        # A restarted node takes work again.
        drain_requested=old_row.drain_requested and not is_new_boot if old_row else False,
        consuming=beat.consuming,
        store_ok=beat.store_ok,
        trouble=beat.trouble,
        exposed=beat.exposed,
        roots=None if beat.roots is None else beat.roots.model_dump_json(),
        refused=protocol_refusal(beat.protocol) or _gpu_announced_twice(conn, beat, old_row),
        protocol=beat.protocol,
        catalogue_hash=beat.catalogue_hash,
        versions=json.dumps(beat.versions),
        first_seen_at=old_row.first_seen_at if old_row else now,
        seen_at=now,
    )


def _gpu_announced_twice(conn: Connection, beat: NodeBeat, old_row: NodeRow | None) -> str | None:
    announced_uuids = {gpu.uuid for gpu in beat.gpus}
    was_fine = old_row is not None and old_row.boot == beat.boot and not old_row.lost and old_row.refused is None
    if not announced_uuids or was_fine:
        return None
    for other_node in nodes.all_nodes(conn):
        if other_node.id != beat.node and not other_node.lost and other_node.refused is None:
            shared_uuids = announced_uuids & {gpu["uuid"] for gpu in json.loads(other_node.gpus)}
            if shared_uuids:
                return f"GPU {min(shared_uuids)} is already announced by node {other_node.name} ({other_node.id})"
    return None


def _keep(conn: Connection, row: NodeRow, old_row: NodeRow | None) -> bool:
    """Stores a node's row. Returns True if any field but the time of the last heartbeat has changed."""
    if old_row is None:
        nodes.insert_node(conn, row)
        return True
    columns = {
        name: getattr(row, name)
        for name in NodeRow.__dataclass_fields__
        if getattr(row, name) != getattr(old_row, name)
    }
    nodes.change(conn, row.id, **columns | {"seen_at": row.seen_at})
    return bool(columns.keys() - {"seen_at"})


def _drain(
    conn: Connection, source: SourceRow, name: str, now: int, settings: ServiceSettings, effects: Effects
) -> None:
    """Stops a job on a draining node after a checkpoint, so that the job continues on another node.

    A job that no worker has claimed yet is queued again at once.
    """
    job = jobs.lock(conn, source.job_id)
    if job is None or job.attempt != source.attempt or job.state not in (JobState.STARTING, JobState.RUNNING):
        return
    if is_claimed(conn, job):
        request_stop(
            conn, job, desired=job.desired, reason=Reason.DRAIN, mode=StopMode.CHECKPOINT,
            stop_seconds=settings.stop_seconds, now=now,
            message=f"{name} is draining: the job saves a checkpoint and continues on another node",
        )  # fmt: skip
        effects.stop_requested.add(job.id)
    else:
        withdraw(conn, job, now)
        jobs.move(
            conn, job.id, to=JobState.QUEUED, expect=[JobState.STARTING], attempt=job.attempt, reason=Reason.DRAINED,
            message=f"{name} is draining, and the attempt had not begun: the job is placed on another node", now=now,
        )  # fmt: skip
    effects.jobs.add(job.id)
