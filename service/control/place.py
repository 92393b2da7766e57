"""Places queued jobs on nodes with free slots."""

from __future__ import annotations

from collections.abc import Sequence

from footplate.contract import redis_keys
from footplate.contract.crash_points import Moment, reached
from footplate.contract.ids import JobId
from footplate.contract.serving import SLOT_WANTED
from service.control.control_state import ControlState
from service.jobs.place import plan_queue, start
from service.store import queue

REPLAN_SECONDS = 5.0
"""The longest time between two plans, even if nothing seems to have changed."""
STARTED_AT_ONCE = 32
"""The most jobs that one transaction starts. The number is low, because requests wait while the transaction runs."""


async def place(state: ControlState) -> None:
    """Plans placements in a transaction that only reads, and then starts the planned jobs in small transactions.

    Reading delays no request, but a request waits while a write transaction runs.
    """
    memory, now, clock = state.memory, state.io.now_ms(), state.io.clock()
    while await state.db.read(queue.has_due, now):
        await state.write(queue.make_due_jobs_ready, now)
    must_plan = memory.slots_changed or clock - memory.placed_at > REPLAN_SECONDS
    queue_state, memory.queue_state = None if must_plan else memory.queue_state, None
    memory.slots_changed = False
    plan = await state.db.read(plan_queue, unless=queue_state)
    if plan.is_new:
        memory.placed_at = clock
        for first in range(0, len(plan.placements), STARTED_AT_ONCE):
            placements = plan.placements[first : first + STARTED_AT_ONCE]
            started_ids = await state.write(start, placements, now)
            if started_ids:
                reached(Moment.AFTER_PLACE_COMMITS)
            state.counts.attempts_placed += len(started_ids)
            state.announce(started_ids)
        if plan.new_waits or plan.removed_shapes:
            await state.write(queue.explain, plan.new_waits, plan.removed_shapes)
    if not plan.placements:
        memory.queue_state = plan.queue_state
    await _want_slots(state, plan.yielding)


async def _want_slots(state: ControlState, sessions: Sequence[JobId]) -> None:
    """Reports to serving sessions that other jobs wait for their slots. The sessions decide when they end."""
    if not sessions:
        return
    async with state.io.redis.pipeline(transaction=False) as pipeline:
        for session in sessions:
            pipeline.rpush(redis_keys.serving_withdrawn(session), SLOT_WANTED)
            pipeline.expire(redis_keys.serving_withdrawn(session), redis_keys.SERVING_SECONDS)
        await pipeline.execute()
