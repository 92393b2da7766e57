"""Notices a Redis that has lost all of its data."""

from __future__ import annotations

from redis.exceptions import ResponseError

from footplate.contract import keys
from footplate.contract.ids import uuid7
from service.control.state import ControlState


async def watch_epoch(state: ControlState) -> None:
    """Sends every start message again if our sentinel key is gone. Journals look for the key themselves."""
    try:
        is_new = await state.outside.redis.set(keys.EPOCH, uuid7(), nx=True)
    except ResponseError:
        state.redis_refuses_writes()
        raise
    if is_new:
        state.memory.send_everything = True
        state.poked.set()
