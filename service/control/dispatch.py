"""Rings the bells of nodes on which attempts wait to be claimed."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from footplate.contract.crash_points import Moment, reached
from service.control.state import ControlState
from service.jobs import dispatch as bells
from service.store.queue import BellRow


async def dispatch(state: ControlState) -> None:
    """Publishes first and marks afterwards, so that a crash between the two rings twice and never not at all."""
    memory, clock = state.memory, state.outside.clock()
    rows = await state.db.read(bells.unclaimed)
    memory.timers.forget("bell", but=map(_key, rows))
    due = _due(state, rows, clock)
    memory.ring_everything = False
    if not due:
        return
    rung, error = await state.outside.ring(due)
    if rung:
        reached(Moment.AFTER_RING)
        state.counts.bells_rung += len(rung)
        for row in rung:
            memory.timers.restart(_key(row), clock)
        now = state.outside.now_ms()
        await state.write(lambda conn: bells.mark_rung(conn, rung, now))
        reached(Moment.AFTER_RING_COMMITS)
    if error is not None:
        memory.ring_everything = True
        raise ConnectionError(f"node {due[len(rung)].node} cannot be told of its new work: {error}") from error


def _due(state: ControlState, rows: Sequence[BellRow], clock: float) -> Sequence[BellRow]:
    """Returns the rows to ring now. A Redis that forgot everything has lost all of their messages."""
    if state.memory.ring_everything:
        return rows
    timers = state.memory.timers
    return bells.due(rows, lambda row: timers.elapsed(_key(row), clock), state.settings.ring_seconds)


def _key(row: BellRow) -> Hashable:
    return ("bell", row.job_id, row.attempt, row.source)
