"""The duties of control, and the pause between two runs of each."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from footplate.contract import keys
from service.control.cleanup import prune, rotate
from service.control.dispatch import dispatch, watch_epoch
from service.control.inbox import push, read_inbox
from service.control.ingest import ingest
from service.control.place import place
from service.control.rescue import RESCUE_SECONDS, rescue
from service.control.state import BLOCK_SECONDS, ControlState

GATHER_SECONDS = 0.02
"""The pause between two runs of `decide`. A wake-up after the pause starts a run at once. All wake-ups during the
pause together start one run."""
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
        await channel.subscribe(keys.WAKE_CONTROL)
        while True:
            if await channel.get_message(timeout=BLOCK_SECONDS):
                state.woken.set()


async def deliver(state: ControlState) -> None:
    """Sends the webhook deliveries whose time of sending or of retry has come."""
    await state.webhook_sender.run_once()


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
