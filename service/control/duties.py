"""The duties of control, and the pause between two runs of each."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from footplate.contract import redis_keys
from footplate.contract.crash_points import Moment, reached
from service.control.cleanup import prune, rotate
from service.control.control_state import BLOCK_SECONDS, STALE_SECONDS, ControlState
from service.control.dispatch import dispatch, watch_epoch
from service.control.inbox import push, read_inbox
from service.control.ingest import ingest
from service.control.place import place
from service.jobs import rescue as rescue_operation

log = logging.getLogger("footplate.control")

GATHER_SECONDS = 0.02
"""The pause between two runs of `decide`. A wake-up after the pause starts a run at once. All wake-ups during the
pause together start one run."""
RESCUE_SECONDS = 1.0
PRUNE_SECONDS = 3600.0


@dataclass(frozen=True, slots=True)
class Duty:
    """One function that control runs again and again, as long as it holds the lock."""

    run: Callable[[ControlState], Awaitable[None]]
    pause_seconds: float = 0.0
    trouble: str = "waits for Redis: %s"
    """The log line for an error of Redis or of a file system."""

    @property
    def name(self) -> str:
        return getattr(self.run, "__name__", "duty")


async def decide(state: ControlState) -> None:
    """Waits for a wake-up or the next poll. Then places jobs, sends start messages, stop requests and commands."""
    await state.io.wait(state.woken, state.settings.poll_seconds)
    state.woken.clear()
    await place(state)
    await dispatch(state)
    await push(state)


async def listen(state: ControlState) -> None:
    """Wakes `decide` when an API process publishes in Redis that a job or a request waits for control."""
    async with state.io.redis.pubsub(ignore_subscribe_messages=True) as channel:
        await channel.subscribe(redis_keys.WAKE_CONTROL)
        while True:
            if await channel.get_message(timeout=BLOCK_SECONDS):
                state.woken.set()


async def deliver(state: ControlState) -> None:
    """Sends the webhook deliveries whose time of sending or of retry has come."""
    await state.webhook_sender.run_once()


async def rescue(state: ControlState) -> None:
    """Declares attempts and nodes lost if their lease or deadline is over, and starts their jobs again.

    Nothing is declared lost while heartbeats may be unread because control or Redis was frozen.
    """
    memory, settings = state.memory, state.settings
    clock, now = state.io.clock(), state.io.now_ms()
    if clock - memory.rescued_at > max(settings.lease_seconds / 3, 5 * RESCUE_SECONDS):
        # This process was frozen or got no CPU time, so unread heartbeats may wait in Redis.
        memory.timers.restart_all(clock)
    memory.rescued_at = clock
    if not state.redis_ok or clock - memory.redis_answered_at > STALE_SECONDS:
        return
    effects = await state.write(rescue_operation.rescue, memory.timers, clock, now, settings)
    if effects.jobs:
        reached(Moment.AFTER_RESCUE_COMMITS)
    state.counts.add(effects.counts)
    for node in effects.nodes_lost:
        log.warning("node %s is lost: no heartbeat for %g s", node, settings.lease_seconds)
    if effects.jobs or effects.stop_requested:
        state.announce(effects.jobs)
        state.request_new_plan()


_FILES = "could not clean up: %s"

DUTIES = (
    Duty(decide, GATHER_SECONDS),
    Duty(read_inbox),
    Duty(ingest),
    Duty(listen),
    Duty(deliver),
    Duty(rescue, RESCUE_SECONDS),
    Duty(watch_epoch, RESCUE_SECONDS),
    Duty(rotate, RESCUE_SECONDS, _FILES),
    Duty(prune, PRUNE_SECONDS, _FILES),
)
