"""The real duties of control, one step at a time. Control may stop or die between any two steps.

The functions of `service.control.duties` run unchanged. The simulation replaces `ControlIo`: the clock, Redis, Celery
and threads. There is no event loop. The simulation advances each coroutine itself.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import service.control.inbox
import service.control.ingest
import worker.attempt.control_link
import worker.attempt.journal
from footplate.contract.errors import Unavailable
from service.control.celery_producer import send_all
from service.control.control_state import ControlIo, ControlState
from service.control.duties import DUTIES
from service.redis_client import UNREACHABLE
from service.settings import ServiceSettings
from service.store.queue import UnclaimedSource
from tests.simulation.books import ReceivedBeats
from tests.simulation.pipe import AsyncLine, CeleryProducer, Redis
from tests.simulation.training import Store
from tests.simulation.world import World, _interrupted

if TYPE_CHECKING:
    from tests.simulation.railway import Railway

SETTINGS = ServiceSettings(
    lease_seconds=8, beat_seconds=2, claim_seconds=8, resend_seconds=3, start_seconds=15, stop_seconds=8,
    kill_seconds=3, retry_backoff_seconds=0.5,
)  # fmt: skip
EVERY = {"decide": 1.5, "read_inbox": 0.7, "ingest": 0.7, "rescue": 1.5, "watch_epoch": 2.0, "rotate": 1.5}
"""Seconds between two runs of a duty. A wake-up starts the next run of `decide` at once."""
RUN = {duty.name: duty.run for duty in DUTIES}


class Lock:
    """Replaces asyncio.Lock, because there is no event loop."""

    def __init__(self) -> None:
        self.is_held = False

    async def __aenter__(self) -> None:
        while self.is_held:
            await _interrupted()
        self.is_held = True

    async def __aexit__(self, *_: object) -> None:
        self.is_held = False


class SimulatedIo(ControlIo):
    """Connects control to the simulated clock, Redis, Celery and artifact store. Waits end at once."""

    def __init__(self, world: World, redis: Redis, store: Store) -> None:
        self._world, self._producer = world, CeleryProducer(redis)
        self.redis = AsyncLine(redis)  # type: ignore[assignment]
        self.remover = SimpleNamespace(remove=lambda _, rows, __: store.remove_all(rows), stuck=0)  # type: ignore[assignment]
        self.clock = lambda: world.clock  # type: ignore[misc]
        self.now_ms = world.now_ms  # type: ignore[misc]

    def warm_up(self) -> None: ...

    async def in_thread(self, fn: Callable[..., Any], *args: Any) -> Any:
        await self._world.interrupt_sometimes()
        result = fn(*args)
        await self._world.interrupt_sometimes()
        return result

    async def send_start_messages(
        self, rows: Sequence[UnclaimedSource]
    ) -> tuple[list[UnclaimedSource], Exception | None]:
        return send_all(self._producer, rows)  # type: ignore[arg-type]

    async def wait(self, event: asyncio.Event, seconds: float) -> None: ...


class Control:
    """One control process, which `die` ends, and which makes no step while `is_frozen`."""

    def __init__(self, railway: Railway, name: str) -> None:
        self.railway, self.world, self.name = railway, railway.world, name
        io = SimulatedIo(self.world, railway.redis, railway.store)
        self.state = ControlState(railway.sql, SETTINGS, io)  # type: ignore[arg-type]
        self.state._writing = Lock()  # type: ignore[assignment]
        self.is_dead = self.is_frozen = False
        self.received = ReceivedBeats(self.world.clock)
        self._unreachable_at = self.world.clock
        """The time when the control began, or last found Redis or SQL unreachable."""
        self._running: dict[str, Coroutine[Any, Any, None]] = {}
        for turn in EVERY:
            if turn == "rotate" and not self.world.rotates:
                continue
            self.world.after(self.world.between(0, 0.5), self._step, turn)

    def die(self) -> None:
        self.is_dead = True
        for turn in self._running.values():
            turn.close()

    def wake(self) -> None:
        self.state.woken.set()
        self.world.after(0.02, self._step, "decide", True)

    def _step(self, turn: str, is_extra: bool = False) -> None:
        if self.is_dead or (is_extra and turn in self._running):
            return
        pause = EVERY[turn]
        if self.is_frozen:
            self.world.after(pause, self._step, turn)
            return
        self.railway.books.received = self.received
        if turn == "rescue" and turn not in self._running:
            self.received.since = self._unreachable_at
        coroutine: Any = self._running.pop(turn, None) or RUN[turn](self.state)
        try:
            coroutine.send(None)
        except StopIteration:
            if turn == "read_inbox" and self.state.woken.is_set():
                self.world.after(0.02, self._step, "decide", True)
        except Unavailable:
            self.state.record_database_outage()
            self._unreachable_at = self.world.clock
        except UNREACHABLE:
            if turn == "read_inbox":
                self._unreachable_at = self.world.clock
        else:
            self._running[turn] = coroutine
            pause = 0.01 if self.world.chance(0.7) else self.world.between(0.05, 3.0)
        if not is_extra:
            # An extra step that is interrupted continues in the regular steps.
            self.world.after(pause * self.world.between(0.8, 1.2), self._step, turn)


def _is_a_bug(text: str, *_: object, exc_info: Exception | None = None) -> None:
    """Raises the exception that control would only log, because control must not fail in the simulation."""
    if exc_info is not None:
        raise exc_info
    raise


@contextmanager
def in_place_of_reality(world: World) -> Iterator[None]:
    """Gives workers the simulated clock, and makes buffers so small that the limits are reached."""
    link = {
        "time": SimpleNamespace(monotonic=lambda: world.clock),
        "BATCH_EVENTS": 4,
        "WINDOW_EVENTS": 12,
        "SILENCE_SECONDS": 3.0,
        "LONGEST_SILENCE_SECONDS": 8.0,
    }
    with ExitStack() as stack:
        stack.enter_context(patch.object(service.control.inbox, "MAX_MESSAGES", 6))
        stack.enter_context(patch.object(service.control.ingest, "MAX_ENTRIES", 4))
        for method in ("exception", "error"):
            stack.enter_context(patch.object(logging.getLogger("footplate.control"), method, _is_a_bug))
        stack.enter_context(patch.multiple(worker.attempt.control_link, **link))
        stack.enter_context(patch.multiple(worker.attempt.journal, INDEX_EVERY=4, DROP_BYTES=600))
        yield
