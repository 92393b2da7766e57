"""Answers claims and heartbeats of workers, many in one transaction."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field

from sqlalchemy import Connection

from footplate.contract import keys
from footplate.contract.crash_points import Moment, reached
from footplate.contract.messages import AttemptBeat, AttemptReply, Claim, Denial, NodeBeat, ProtocolMessage
from service.jobs.beat import StopLeft, attempt_beat, node_beat, protocol_refusal, stop_of
from service.jobs.conclude import Effects
from service.jobs.grant import grant
from service.jobs.rescue import attempt_key, node_key
from service.settings import ServiceSettings
from service.store import attempts, commands, jobs


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
    has_new_capacity: bool = False


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
    answered = Denial(claim=claim.claim, reason=refusal) if refusal else grant(conn, claim, now, settings)
    effects.replies.append((keys.reply(claim.claim), answered))
    if isinstance(answered, Denial):
        effects.counts.claims_denied += 1
    else:
        effects.counts.claims_granted += 1
        effects.alive.append((attempt_key(claim.job, claim.attempt, answered.source), 0))
        effects.jobs.add(claim.job)
        if answered.rendezvous is not None:
            # The other nodes of the job have waited for this last claim.
            for source in attempts.sources_of(conn, claim.job, claim.attempt):
                if source.claim is not None and source.claim != claim.claim:
                    reply = AttemptReply(claim=source.claim, rendezvous=answered.rendezvous, watermark=source.watermark)
                    effects.replies.append((keys.reply(source.claim), reply))
        reached(Moment.BEFORE_GRANT_COMMITS)


def _attempt(conn: Connection, beat: AttemptBeat, now: int, stop_left: StopLeft, effects: InboxEffects) -> None:
    reply = attempt_beat(conn, beat, now, stop_left)
    effects.counts.beats += 1
    effects.replies.append((keys.reply(beat.claim), reply))
    is_over = reply.superseded or reply.closed
    effects.depths[beat.claim] = 0 if is_over else max(0, beat.journaled - reply.watermark)
    if reply.superseded:
        effects.counts.stale_refused += 1
    else:
        effects.alive.append((attempt_key(beat.job, beat.attempt, beat.source), beat.number))
    reached(Moment.BEFORE_BEAT_COMMITS)


def _node(conn: Connection, beat: NodeBeat, now: int, settings: ServiceSettings, effects: InboxEffects) -> None:
    beaten = node_beat(conn, beat, now, settings)
    effects.counts.beats += 1
    effects.replies.append((keys.node_reply(beat.node, beat.boot), beaten.reply))
    effects.alive.append((node_key(beat.node, beat.boot), beat.number))
    effects.add(beaten)
    effects.depths[beat.node] = beat.unsent
    effects.unreadable[beat.node] = beat.unreadable
    effects.has_new_capacity |= beaten.has_new_capacity


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
    for claim, undone in commands.undone_by_claim(conn).items():
        replies[claim, -undone[-1].no] = AttemptReply(claim=claim, commands=undone)
    return replies
