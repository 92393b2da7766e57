"""Pushes stops and commands to running attempts, so that they do not wait for the next heartbeat."""

from __future__ import annotations

from footplate.contract import keys
from service.control.state import ControlState
from service.jobs.inbox import words


async def push(state: ControlState) -> None:
    """Pushes each stop and each command once. Replies to heartbeats repeat them."""
    stop_left = state.stop_left()
    replies = await state.db.read(lambda conn: words(conn, stop_left))
    unsent = [reply for key, reply in replies.items() if key not in state.memory.pushed]
    await state.send([(keys.reply(reply.claim), reply) for reply in unsent])
    state.memory.pushed = set(replies)
