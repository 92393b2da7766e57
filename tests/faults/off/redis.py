"""Switches of the protections around a Redis that loses data, dies, freezes or is full."""

from __future__ import annotations

import math
from typing import Any

from tests.faults.off import switch


@switch("a lost start message is sent again", module="service.control.dispatch")
def send_start_messages_once(dispatch: Any) -> None:
    """Sends each start message only once, even after Redis lost its data or if no node claims the attempt."""
    dispatch._is_due = lambda _state, row, _clock: row.sent_at is None


@switch("unacknowledged events are sent again", module="worker.attempt.control_link")
def send_once(control: Any) -> None:
    control.Sender.rewind = lambda self: None


@switch("events after a gap are not stored", module="service.events.changes")
def store_whatever_comes(changes: Any) -> None:
    from dataclasses import replace

    contiguous = changes.Collector.take

    def eager(self: Any, batch: Any, part: Any, effects: Any) -> None:
        for event in batch.events:
            contiguous(self, replace(batch, events=[]), part, effects)
            page = self.changes.sources[part.attempt, part.source]
            page.watermark = max(page.watermark, event.seq - 1)
            contiguous(self, replace(batch, events=[event]), part, effects)

    changes.Collector.take = eager


@switch("leases pause while Redis is unreachable", module="service.control.control_state")
def run_leases_while_redis_is_unreachable(control: Any) -> None:
    """Lets leases run out while Redis is unreachable."""

    def always_fine(self: Any, **_: Any) -> None:
        self.redis_ok, self.memory.redis_answered_at = True, math.inf

    control.ControlState.record_redis_answer = always_fine
    control.ControlState.record_redis_outage = control.ControlState.renew_leases = lambda self: None


@switch("a stop is repeated until it is received", module="service.control.inbox")
def send_each_stop_once(control_inbox: Any) -> None:
    """Pushes each stop even into an unreachable Redis, and does not repeat it in replies to heartbeats."""
    import service.jobs.inbox

    inbox: Any = service.jobs.inbox
    answered = inbox.attempt_beat

    async def push_once(state: Any) -> None:
        stop_left = state.stop_left()
        replies = await state.db.read(lambda conn: control_inbox.unasked_replies(conn, stop_left))
        unsent = [reply for key, reply in replies.items() if key not in state.memory.pushed and not reply.stop]
        await state.send([(control_inbox.redis_keys.reply(reply.claim), reply) for reply in unsent])
        state.memory.pushed = set(replies)

    control_inbox.push = push_once
    inbox.attempt_beat = lambda *args: answered(*args).model_copy(update={"stop": None})
