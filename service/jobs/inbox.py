"""Answers the messages of workers, many in one transaction. Each answer is a function of (SQL, message, now)."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field

from sqlalchemy import Connection

from footplate.contract import keys
from footplate.contract.crash_points import Moment, reached
from footplate.contract.messages import AttemptBeat, AttemptReply, Claim, Denial, Grant, Message, NodeBeat
from service.jobs.beat import StopLeft, attempt_beat, node_beat, protocol_refusal, stop_of
from service.jobs.conclude import Effects
from service.jobs.grant import grant
from service.jobs.rescue import attempt_key, node_key
from service.settings import ServiceSettings
from service.store import attempts, commands, jobs


@dataclass(slots=True)
class Heard(Effects):
    """The answers, by the list that each goes to, and further consequences."""

    replies: list[tuple[str, Message]] = field(default_factory=list)
    alive: list[tuple[Hashable, int]] = field(default_factory=list)
    """The leases that a heartbeat extends, with the heartbeat's number."""
    granted: int = 0
    denied: int = 0
    beats: int = 0
    superseded: int = 0
    depths: dict[str, int] = field(default_factory=dict)
    """Events in a journal but not in SQL, by claim, or by node for dead attempts."""
    unreadable: dict[str, int] = field(default_factory=dict)
    """Journals that were set aside, by node."""
    has_new_room: bool = False


def answer(
    conn: Connection,
    messages: Sequence[Claim | AttemptBeat | NodeBeat],
    now: int,
    settings: ServiceSettings,
    stop_left: StopLeft,
) -> Heard:
    heard = Heard()
    for message in messages:
        if isinstance(message, Claim):
            _claim(conn, message, now, settings, heard)
        elif isinstance(message, AttemptBeat):
            _attempt(conn, message, now, stop_left, heard)
        else:
            _node(conn, message, now, settings, heard)
    return heard


def _claim(conn: Connection, claim: Claim, now: int, settings: ServiceSettings, heard: Heard) -> None:
    refusal = protocol_refusal(claim.protocol)
    answered = Denial(claim=claim.claim, reason=refusal) if refusal else grant(conn, claim, now, settings)
    heard.replies.append((keys.reply(claim.claim), answered))
    if isinstance(answered, Denial):
        heard.denied += 1
    else:
        heard.granted += 1
        heard.alive.append((attempt_key(claim.job, claim.attempt, answered.source), 0))
        heard.jobs.add(claim.job)
        if answered.rendezvous is not None:
            _send_rendezvous(conn, answered, heard)
        reached(Moment.BEFORE_GRANT_COMMITS)


def _send_rendezvous(conn: Connection, last: Grant, heard: Heard) -> None:
    """Sends the rendezvous to the other nodes, which wait for this last claim."""
    for part in attempts.sources_of(conn, last.job, last.attempt):
        if part.claim is not None and part.claim != last.claim:
            reply = AttemptReply(claim=part.claim, rendezvous=last.rendezvous, watermark=part.watermark)
            heard.replies.append((keys.reply(part.claim), reply))


def _attempt(conn: Connection, beat: AttemptBeat, now: int, stop_left: StopLeft, heard: Heard) -> None:
    reply = attempt_beat(conn, beat, now, stop_left)
    heard.beats += 1
    heard.replies.append((keys.reply(beat.claim), reply))
    is_over = reply.superseded or reply.closed
    heard.depths[beat.claim] = 0 if is_over else max(0, beat.journaled - reply.watermark)
    if reply.superseded:
        heard.superseded += 1
    else:
        heard.alive.append((attempt_key(beat.job, beat.attempt, beat.source), beat.number))
    reached(Moment.BEFORE_BEAT_COMMITS)


def _node(conn: Connection, beat: NodeBeat, now: int, settings: ServiceSettings, heard: Heard) -> None:
    beaten = node_beat(conn, beat, now, settings)
    heard.beats += 1
    heard.replies.append((keys.node_reply(beat.node, beat.boot), beaten.reply))
    heard.alive.append((node_key(beat.node, beat.boot), beat.number))
    heard.add(beaten)
    heard.depths[beat.node] = beat.unsent
    heard.unreadable[beat.node] = beat.unreadable
    heard.has_new_room |= beaten.has_new_room


def words(conn: Connection, stop_left: StopLeft) -> dict[tuple[str, int], AttemptReply]:
    """Returns messages that workers get without asking, by claim and by the number of the decision."""
    replies: dict[tuple[str, int], AttemptReply] = {}
    for job in jobs.stopping(conn):
        for part in attempts.sources_of(conn, job.id, job.attempt):
            if part.claim is not None and part.ended_at is None:
                replies[part.claim, job.version] = AttemptReply(
                    claim=part.claim, stop=stop_of(job, stop_left), watermark=part.watermark
                )
    for claim, asked in commands.undone_by_claim(conn).items():
        replies[claim, -asked[-1].no] = AttemptReply(claim=claim, commands=asked)
    return replies
