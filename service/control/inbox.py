"""Reads claims and heartbeats from the inbox in Redis, replies to their senders, and pushes stops and commands."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from pydantic import ValidationError

from footplate.contract import redis_keys
from footplate.contract.crash_points import Moment, reached
from footplate.contract.messages import TO_CONTROL, AttemptBeat, Claim, NodeBeat
from service.control.control_state import BLOCK_SECONDS, ControlState
from service.jobs.inbox import InboxEffects, answer, unasked_replies
from service.redis_client import UNREACHABLE

log = logging.getLogger("footplate.control")

MAX_MESSAGES = 500
"""The most messages that are read from the inbox behind the first one, and answered in the same transaction."""

Received = Claim | AttemptBeat | NodeBeat


async def read_inbox(state: ControlState) -> None:
    """Reads waiting claims and heartbeats, stores their effects in one transaction, and then replies to the senders.

    A sender repeats a message that gets no reply.
    """
    try:
        messages = await _take(state)
        now, clock = state.io.now_ms(), state.io.clock()
        for effects in await _answer(state, messages, now):
            if any(isinstance(message, AttemptBeat) for message in messages):
                reached(Moment.AFTER_BEAT_COMMITS)
            if effects.counts.claims_granted:
                reached(Moment.AFTER_GRANT_COMMITS)
            for key, number in effects.alive:
                state.memory.timers.renew(key, number, clock)
            _count(state, effects)
            state.announce(effects.jobs)
            if effects.has_new_capacity or effects.counts.attempts_lost or effects.stop_requested:
                state.request_new_plan()
            await state.send(effects.replies)
            if effects.counts.claims_granted:
                reached(Moment.AFTER_GRANT_SENT)
    except UNREACHABLE:
        # Leases depend on the inbox alone, so only this duty decides whether Redis works.
        state.record_redis_outage()
        raise


async def _take(state: ControlState) -> list[Received]:
    """Waits for a message, and also takes the messages behind it. Returns [] if no message arrived in time."""
    redis, asked_at = state.io.redis, state.io.clock()
    first = await redis.blpop([redis_keys.INBOX], timeout=BLOCK_SECONDS)
    state.record_redis_answer(seconds=state.io.clock() - asked_at)
    if first is None:
        return []
    more = await redis.lpop(redis_keys.INBOX, MAX_MESSAGES)
    return [message for raw in (first[1], *(more or ())) if (message := _parsed(state, raw))]


def _parsed(state: ControlState, raw: bytes) -> Received | None:
    try:
        return TO_CONTROL.validate_json(raw)
    except ValidationError as error:
        state.counts.events_dead += 1
        log.warning("dropped an invalid message from the inbox: %s", str(error).partition("\n")[0])
        return None


async def _answer(state: ControlState, messages: Sequence[Received], now: int) -> list[InboxEffects]:
    """Answers all messages in one transaction.

    If this transaction fails, each message gets a transaction of its own. The leases of other senders are
    then renewed despite one bad message.
    """
    if not messages:
        return []
    effects = await state.try_write(answer, messages, now, state.settings, state.stop_left())
    if isinstance(effects, InboxEffects):
        return [effects]
    log.error("a claim or heartbeat from the inbox cannot be answered", exc_info=effects)
    if len(messages) == 1:
        state.counts.events_dead += 1
        return []
    return [effects for message in messages for effects in await _answer(state, [message], now)]


def _count(state: ControlState, effects: InboxEffects) -> None:
    counts, memory = state.counts, state.memory
    counts.add(effects.counts)
    memory.depths.update(effects.depths)
    counts.journal_depth = memory.depths.total()
    memory.unreadable.update(effects.unreadable)
    counts.journals_unreadable = memory.unreadable.total()


async def push(state: ControlState) -> None:
    """Pushes each stop and each command once, without waiting for a heartbeat. Replies to heartbeats repeat them."""
    replies = await state.db.read(unasked_replies, state.stop_left())
    unsent = [reply for key, reply in replies.items() if key not in state.memory.pushed]
    await state.send([(redis_keys.reply(reply.claim), reply) for reply in unsent])
    state.memory.pushed = set(replies)
