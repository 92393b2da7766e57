"""Declares attempts and nodes lost if their lease or deadline is over."""

from __future__ import annotations

import logging

from footplate.contract.crash_points import Moment, reached
from service.control.state import STALE_SECONDS, ControlState
from service.jobs import rescue as operation

log = logging.getLogger("footplate.control")

RESCUE_SECONDS = 1.0


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
    rescued = await state.write(lambda conn: operation.rescue(conn, memory.timers, clock, now, settings))
    if rescued.jobs:
        reached(Moment.AFTER_RESCUE_COMMITS)
    state.counts.add(rescued.counts)
    for node in rescued.nodes_lost:
        log.warning("node %s is lost: no heartbeat for %g s", node, settings.lease_seconds)
    if rescued.jobs or rescued.stop_requested:
        state.announce(rescued.jobs)
        state.request_new_plan()
