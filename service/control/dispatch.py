"""Sends the start messages of attempts that are placed and not claimed."""

from __future__ import annotations

from collections.abc import Hashable

from redis.exceptions import ResponseError

from footplate.contract import redis_keys
from footplate.contract.crash_points import Moment, reached
from footplate.contract.ids import uuid7
from service.control.control_state import ControlState
from service.store import attempts, queue
from service.store.queue import UnclaimedSource


async def dispatch(state: ControlState) -> None:
    """Sends the start messages that are due, and then marks these messages as sent in SQL.

    A crash between the two steps sends a message twice. The other order could lose the message.
    """
    memory, clock = state.memory, state.io.clock()
    rows = await state.db.read(queue.unclaimed)
    due = [row for row in rows if _is_due(state, row, clock)]
    memory.timers.forget_unread("start message")
    memory.send_everything = False
    if not due:
        return
    sent_rows, error = await state.io.send_start_messages(due)
    if sent_rows:
        reached(Moment.AFTER_DISPATCH)
        state.counts.start_messages_sent += len(sent_rows)
        for row in sent_rows:
            memory.timers.restart(_key(row), clock)
        await state.write(attempts.mark_sent, sent_rows, state.io.now_ms())
        reached(Moment.AFTER_DISPATCH_COMMITS)
    if error is not None:
        memory.send_everything = True
        raise ConnectionError(
            f"the start message to node {due[len(sent_rows)].node} cannot be sent: {error}"
        ) from error


def _is_due(state: ControlState, row: UnclaimedSource, clock: float) -> bool:
    """Returns True if the start message must be sent, for the first time or again.

    A message is sent again if no claim arrives within `resend_seconds`, or if Redis may have lost the message.
    """
    if state.memory.send_everything or row.sent_at is None:
        return True
    return state.memory.timers.elapsed(_key(row), clock) > state.settings.resend_seconds


def _key(row: UnclaimedSource) -> Hashable:
    return ("start message", row.job_id, row.attempt, row.source)


async def watch_epoch(state: ControlState) -> None:
    """Sends every start message again if the key `EPOCH` is missing in Redis, because Redis has then lost all its data.

    Nodes look for this key themselves, and send the events of their journals again.
    """
    try:
        is_new = await state.io.redis.set(redis_keys.EPOCH, uuid7(), nx=True)
    except ResponseError:
        # Redis is full or a replica, so workers cannot send heartbeats.
        state.renew_leases()
        raise
    if is_new:
        state.memory.send_everything = True
        state.woken.set()
