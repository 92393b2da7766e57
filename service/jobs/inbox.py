"""Answers claims and heartbeats of workers, many in one transaction.

A claim is answered with a grant or a denial. A grant holds all data that a supervisor needs for its attempt. If this
supervisor repeats its claim, it gets the grant again.
"""

from __future__ import annotations

import json
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field

from sqlalchemy import Connection

from footplate.contract import redis_keys
from footplate.contract.crash_points import Moment, reached
from footplate.contract.ids import ClaimId
from footplate.contract.lifecycle import JobState, Reason
from footplate.contract.messages import AttemptBeat, AttemptReply, Claim, Denial, Grant, NodeBeat, ProtocolMessage
from footplate.contract.tracing import of_attempt
from service.jobs import multi_node, start_checkpoint
from service.jobs.beat import StopLeft, attempt_beat, node_beat, protocol_refusal, stop_of
from service.jobs.conclude import Effects
from service.jobs.rescue import attempt_key, node_key
from service.settings import ServiceSettings
from service.store import attempts, checkpoints, commands, jobs, nodes, traces
from service.store.row_types import JobRow, SourceRow


@dataclass(slots=True)
class InboxEffects(Effects):
    """The replies to workers, each with the Redis list that it goes to, and other effects of their messages."""

    replies: list[tuple[str, ProtocolMessage]] = field(default_factory=list)
    alive: list[tuple[Hashable, int]] = field(default_factory=list)
    """The leases that start again after the commit, each with the number of its heartbeat, which is 0 for a grant."""
    depths: dict[str, int] = field(default_factory=dict)
    """The number of events in journals that SQL does not have, by claim, or by node for attempts that have ended."""
    unreadable: dict[str, int] = field(default_factory=dict)
    """The number of journals on each node that cannot be read and were renamed to `*.unreadable`."""


def answer(
    conn: Connection,
    messages: Sequence[Claim | AttemptBeat | NodeBeat],
    now: int,
    settings: ServiceSettings,
    stop_left: StopLeft,
) -> InboxEffects:
    effects = InboxEffects()
    for message in messages:
        if isinstance(message, Claim):
            _claim(conn, message, now, settings, effects)
        elif isinstance(message, AttemptBeat):
            _attempt(conn, message, now, stop_left, effects)
        else:
            _node(conn, message, now, settings, effects)
    return effects


def _claim(conn: Connection, claim: Claim, now: int, settings: ServiceSettings, effects: InboxEffects) -> None:
    refusal = protocol_refusal(claim.protocol)
    answer = Denial(claim=claim.claim, reason=refusal) if refusal else grant(conn, claim, now, settings)
    effects.replies.append((redis_keys.reply(claim.claim), answer))
    if isinstance(answer, Denial):
        effects.counts.claims_denied += 1
    else:
        effects.counts.claims_granted += 1
        effects.alive.append((attempt_key(claim.job, claim.attempt, answer.source), 0))
        effects.jobs.add(claim.job)
        if answer.rendezvous is not None:
            # The other nodes of the job have waited for this last claim.
            for source in attempts.sources_of(conn, claim.job, claim.attempt):
                if source.claim is not None and source.claim != claim.claim:
                    reply = AttemptReply(claim=source.claim, rendezvous=answer.rendezvous, watermark=source.watermark)
                    effects.replies.append((redis_keys.reply(source.claim), reply))
        reached(Moment.BEFORE_GRANT_COMMITS)


def grant(conn: Connection, claim: Claim, now: int, settings: ServiceSettings) -> Grant | Denial:
    """Returns a grant if one guarded UPDATE could store the claim, else a denial.

    A denial is final, because the attempt then belongs to another claim or has ended.
    """
    node = nodes.find(conn, claim.node)
    if node is not None and node.refused is not None:
        return Denial(claim=claim.claim, reason=f"this node gets no work: {node.refused}")
    # Every transaction locks a job before its sources, because another order could cause deadlocks.
    job = jobs.lock(conn, claim.job)
    source = attempts.claim(
        conn, claim.job, claim.attempt, claim.fence, claim.node, claim.boot, ClaimId(claim.claim), now, claim.rendezvous
    )
    if source is None or job is None:
        return Denial(claim=claim.claim, reason=_why_not(conn, claim, job))
    if job.state is JobState.STARTING and job.reason is not Reason.CLAIMED:
        jobs.record(conn, job.id, reason=Reason.CLAIMED, message=None)
    if source.claimed_at == now:
        attempts.change(conn, job.id, job.attempt, claimed_at=now)
    return _granted(conn, claim, job, source, settings)


def _granted(conn: Connection, claim: Claim, job: JobRow, source: SourceRow, settings: ServiceSettings) -> Grant:
    # This attempt's own checkpoints are left out, because all of its nodes must continue from the same one.
    earlier_rows = [row for row in checkpoints.offers(conn, job.id) if row.attempt < job.attempt]
    offers = [start_checkpoint.offered(row, was_corrupt=row.status == checkpoints.CORRUPT) for row in earlier_rows]
    sources = attempts.sources_of(conn, job.id, job.attempt)
    left_ms = None if job.time_limit_ms is None else max(0, job.time_limit_ms - job.running_ms)
    return Grant(
        job=job.id,
        attempt=job.attempt,
        fence=job.fence,
        claim=claim.claim,
        source=source.source,
        nodes=len(sources),
        rendezvous=multi_node.rendezvous(sources),
        spec=json.loads(job.spec),
        gpus=json.loads(source.gpus),
        checkpoints=offers or start_checkpoint.offer(conn, job),
        commands=commands.of_job(conn, job.id),
        watermark=source.watermark,
        beat_seconds=settings.beat_seconds,
        time_left_seconds=None if left_ms is None else left_ms / 1000,
        traceparent=of_attempt(traces.of_job(conn, job.id), job.id, job.attempt),
        project=job.project,
    )


def _why_not(conn: Connection, claim: Claim, job: JobRow | None) -> str:
    if job is None:
        return "there is no such job"
    if (job.attempt, job.fence) != (claim.attempt, claim.fence):
        return f"attempt {claim.attempt} is over: the job is at attempt {job.attempt}"
    if not job.state.holds_slots:
        return f"the job is {job.state}"
    own_sources = [source for source in attempts.sources_of(conn, job.id, job.attempt) if source.node == claim.node]
    if not own_sources:
        return "the attempt was placed on another node"
    return (
        "another supervisor has claimed the attempt"
        if own_sources[0].claim
        else f"the job is {job.state}, not starting"
    )


def _attempt(conn: Connection, beat: AttemptBeat, now: int, stop_left: StopLeft, effects: InboxEffects) -> None:
    reply = attempt_beat(conn, beat, now, stop_left)
    effects.counts.beats += 1
    effects.replies.append((redis_keys.reply(beat.claim), reply))
    is_over = reply.superseded or reply.closed
    effects.depths[beat.claim] = 0 if is_over else max(0, beat.journaled - reply.watermark)
    if reply.superseded:
        effects.counts.stale_refused += 1
    else:
        effects.alive.append((attempt_key(beat.job, beat.attempt, beat.source), beat.number))
    reached(Moment.BEFORE_BEAT_COMMITS)


def _node(conn: Connection, beat: NodeBeat, now: int, settings: ServiceSettings, effects: InboxEffects) -> None:
    reply = node_beat(conn, beat, now, settings, effects)
    effects.counts.beats += 1
    effects.replies.append((redis_keys.node_reply(beat.node, beat.boot), reply))
    effects.alive.append((node_key(beat.node, beat.boot), beat.number))
    effects.depths[beat.node] = beat.unsent
    effects.unreadable[beat.node] = beat.unreadable


def unasked_replies(conn: Connection, stop_left: StopLeft) -> dict[tuple[str, int], AttemptReply]:
    """Returns the stop requests and commands of running attempts, so that control can push them before a heartbeat.

    Each reply has a key that changes when the reply changes, because control pushes each reply once. The key is the
    claim and a number. For a stop the number is the job's version, for commands the negative `no` of the newest one.
    """
    replies: dict[tuple[str, int], AttemptReply] = {}
    for job in jobs.stopping(conn):
        for source in attempts.sources_of(conn, job.id, job.attempt):
            if source.claim is not None and source.ended_at is None:
                replies[source.claim, job.version] = AttemptReply(
                    claim=source.claim, stop=stop_of(job, stop_left), watermark=source.watermark
                )
    for claim, open_commands in commands.undone_by_claim(conn).items():
        replies[claim, -open_commands[-1].no] = AttemptReply(claim=claim, commands=open_commands)
    return replies
