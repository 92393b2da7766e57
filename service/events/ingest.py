"""Moves events from Redis to SQL, once each and in order, and then acknowledges them to their journals.

Each event is stored exactly once, because no seq is skipped. For every source, SQL keeps the watermark, up to which all
events are stored. The next event to store has the seq watermark + 1. An event with a lower seq is a duplicate. An event
with a higher seq is not stored: its journal keeps all events above the watermark and sends them again.

There is no consumer group. Control reads from the beginning of the stream, and deletes entries after the commit. So an
entry in the stream is either not in SQL yet, or a duplicate. A group would store in Redis which entries were read, and
Redis may lose all data.
"""

from __future__ import annotations

import json
from typing import Any

from sqlalchemy import Connection

from footplate.contract.crash_points import Moment, reached
from footplate.contract.events import Kind, json_safe
from footplate.contract.ids import ClaimId
from footplate.contract.lifecycle import JobState, Reason
from footplate.contract.messages import AttemptReply
from service.events import curves
from service.events.changes import Collector, IngestEffects, JobChanges, SourceChanges
from service.events.entries import ParsedEntries
from service.events.row_limits import LEFT_OUT, latest
from service.jobs import multi_node
from service.jobs.conclude import AttemptEnd, conclude
from service.jobs.prune import rotate
from service.jobs.roll_back import continue_at
from service.store import attempts, checkpoints, commands, events, jobs, nodes
from service.store.row_types import loads


def ingest(
    conn: Connection, entries: ParsedEntries, now: int, *, retry_backoff_seconds: float, service_frees: bool = False
) -> IngestEffects:
    """Stores parsed events in one transaction. The jobs' locks are held until the commit, so `no` is in commit order.

    With `service_frees`, control deletes the folders of checkpoints that training no longer keeps. Otherwise the node
    has deleted these folders already.
    """
    effects = IngestEffects()
    job_ids = {batch.job for batch in entries.batches}
    locked_jobs = jobs.lock_many(conn, job_ids)
    sources = attempts.sources_of_many(conn, locked_jobs)
    rotated_status = checkpoints.DELETING if service_frees else checkpoints.DELETED
    collectors = {}
    for job_id, job in locked_jobs.items():
        current_sources = [row for row in sources.values() if (row.job_id, row.attempt) == (job_id, job.attempt)]
        collectors[job_id] = Collector(job, now, current_sources, rotated_status)
    for batch in entries.batches:
        key = (batch.job, batch.attempt, batch.source)
        source = sources.get(key)
        if source is None and batch.events:
            # The job was deleted. Acknowledge its events, or the node would send them again and again.
            effects.watermarks[key] = max(effects.watermarks.get(key, 0), batch.events[-1].seq)
        if source is None or source.claim != batch.claim:
            effects.counts.stale_refused += len(batch.events)
            effects.replies[batch.claim] = AttemptReply(claim=batch.claim, superseded=True, closed=True)
        else:
            collectors[batch.job].take(batch, source, effects)
    changes_of = {job_id: collector.changes for job_id, collector in collectors.items()}
    events.insert_many(conn, [row for changes in changes_of.values() for row in changes.rows])
    curves.keep(conn, {job_id: changes.points for job_id, changes in changes_of.items()})
    for changes in changes_of.values():
        _write(conn, changes, now, effects, retry_backoff_seconds)
    for reason, raw in entries.dead:
        events.insert_dead(conn, reason, raw, now)
    effects.counts.events_dead += len(entries.dead)
    reached(Moment.BEFORE_INGEST_COMMITS)
    if effects.counts.attempts_closed:
        reached(Moment.BEFORE_CLOSE_COMMITS)
    return effects


def _write(
    conn: Connection, changes: JobChanges, now: int, effects: IngestEffects, retry_backoff_seconds: float
) -> None:
    """Writes the changes of one job, and closes its attempt if all of its sources have ended."""
    job_id = changes.job.id
    _record(conn, changes, now, effects)
    for row in changes.committed:
        checkpoints.insert_checkpoint(conn, row)
    for paths, status in changes.marks:
        checkpoints.mark(conn, job_id, paths, status)
    for path in changes.healed:
        checkpoints.heal(conn, job_id, path)
    for step, command in changes.done_commands:
        if command.asked is not None:
            commands.done(conn, job_id, command.asked, step, command.set, evaluated=command.evaluate)
    for source_changes in changes.sources.values():
        _save_source(conn, source_changes, now)
    _start_running(conn, changes, now)
    _close(conn, changes, now, effects, retry_backoff_seconds)
    if changes.committed:
        rotate(conn, job_id)
    _answer(changes, effects)
    effects.counts.checkpoints_refused += sum(status == checkpoints.CORRUPT for _, status in changes.marks)
    effects.counts.checkpoints_refused += sum(why.startswith("checkpoint ") for why, _ in changes.troubles)
    for reason, raw in changes.troubles:
        events.insert_dead(conn, reason, raw, now)
    effects.counts.events_dead += len(changes.troubles)


def _record(conn: Connection, changes: JobChanges, now: int, effects: IngestEffects) -> None:
    job = changes.job
    before = _continue(conn, changes)
    columns: dict[str, Any] = {}
    is_cut = False
    if changes.rows:
        columns["last_no"] = changes.no
        effects.jobs.add(job.id)
    if changes.progress is not None:
        columns["progress"] = changes.progress
    if changes.metrics:
        metrics, is_cut = latest(loads(before) or {}, json_safe(changes.metrics))
        columns["metrics"] = json.dumps(metrics)
    if changes.committed:
        columns["failed_without_checkpoint"] = 0
    if columns:
        jobs.record(conn, job.id, **columns)
    if is_cut and not events.has_note(conn, job.id, LEFT_OUT):
        events.append(conn, job.id, Kind.NOTE, {"message": LEFT_OUT}, now)
    if changes.running_ms:
        attempts.set_running_time(conn, job.id, job.attempt, changes.running_ms)


def _continue(conn: Connection, changes: JobChanges) -> str | None:
    """Returns the job's metrics before its new events, moved back to the checkpoint from which an attempt continues."""
    if changes.continued is None:
        return changes.job.metrics
    attempt, path = changes.continued
    start = next((row for row in checkpoints.of_job(conn, changes.job.id) if row.path == path), None)
    return continue_at(conn, changes.job, start, attempt=attempt) if start else changes.job.metrics


def _save_source(conn: Connection, source_changes: SourceChanges, now: int) -> None:
    source = source_changes.source
    columns: dict[str, Any] = {}
    if source_changes.watermark != source.watermark:
        columns["watermark"] = source_changes.watermark
    if source_changes.is_running and source.running_at is None:
        columns["running_at"] = now
    if source_changes.end is not None:
        columns["done"] = source_changes.end.model_dump_json()
        columns["ended_at"] = source.ended_at or now
        if source_changes.end.stop == "drain":
            # Until the node's own heartbeat reports the drain, the job could otherwise be placed on this node again.
            nodes.mark_draining(conn, source.node, source.boot)
    if columns:
        attempts.change_source(conn, source.job_id, source.attempt, source.source, **columns)


def _start_running(conn: Connection, changes: JobChanges, now: int) -> None:
    """Moves the job to RUNNING once all of its nodes have reported that they train.

    No further `state` event is written, because the last node's event is stored.
    """
    job = changes.job
    if job.state is not JobState.STARTING or not any(entry.is_running for entry in changes.sources.values()):
        return
    if any(source.running_at is None for source in attempts.sources_of(conn, job.id, job.attempt)):
        return
    jobs.move(
        conn, job.id, to=JobState.RUNNING, expect=[JobState.STARTING], attempt=job.attempt, fence=job.fence,
        reason=Reason.TRAINING, now=now, with_event=False, started_at=job.started_at or now,
    )  # fmt: skip
    attempts.change(conn, job.id, job.attempt, running_at=now)


def _close(
    conn: Connection, changes: JobChanges, now: int, effects: IngestEffects, retry_backoff_seconds: float
) -> None:
    """Ends the attempt if all of its sources have ended. If one source failed, sends stop requests to the others."""
    if not any(entry.is_current and entry.end is not None for entry in changes.sources.values()):
        return
    sources = attempts.sources_of(conn, changes.job.id, changes.job.attempt)
    if running_sources := [source for source in sources if source.done is None and source.claim is not None]:
        stop = multi_node.stop_of(sources)
        for source in running_sources if stop else ():
            effects.replies[ClaimId(str(source.claim))] = AttemptReply(
                claim=ClaimId(str(source.claim)), stop=stop, watermark=source.watermark
            )
        return
    job = jobs.lock(conn, changes.job.id)
    if job is not None:
        end = AttemptEnd.of(multi_node.decisive(sources))
        conclude(conn, job, end, now, effects, retry_backoff_seconds=retry_backoff_seconds)
        effects.counts.attempts_closed += 1


def _answer(changes: JobChanges, effects: IngestEffects) -> None:
    """Adds a reply for each source that has ended, was replaced, or has a new stored checkpoint."""
    stored_step = changes.committed[-1].step if changes.committed else None
    for source_changes in changes.sources.values():
        claim = source_changes.source.claim
        if claim is None or (source_changes.is_current and not source_changes.is_done and stored_step is None):
            continue
        effects.replies[claim] = AttemptReply(
            claim=claim,
            superseded=not (source_changes.is_current or source_changes.is_done),
            watermark=source_changes.watermark,
            stored_step=stored_step if source_changes.is_current else None,
            closed=source_changes.is_done or changes.job.state.is_terminal,
        )
