"""The real turns of control, one step at a time: between any two steps it may be left standing, or die.

`service.control.turns` runs as it is. The test owns what it sees of the world outside: the clock, Redis, the bell,
and an event loop that is advanced by hand.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import service.control.cleanup
import service.control.turns
import worker.attempt.control_link
import worker.attempt.journal
from footplate.contract.errors import Unavailable
from service.control.turns import AWAY, Turns
from service.settings import ServiceSettings
from tests.simulation.books import Ear
from tests.simulation.pipe import AsyncLine, Bell, Redis
from tests.simulation.training import Store
from tests.simulation.world import World, _interrupted

if TYPE_CHECKING:
    from tests.simulation.railway import Railway

SETTINGS = ServiceSettings(
    lease_seconds=8, beat_seconds=2, claim_seconds=8, ring_seconds=3, start_seconds=15, stop_seconds=8, kill_seconds=3,
    retry_backoff_seconds=0.5,
)  # fmt: skip
EVERY = {"decide": 1.5, "read_inbox": 0.7, "ingest": 0.7, "rescue": 1.5, "watch_epoch": 2.0, "rotate": 1.5}
"""Seconds between two turns. A poke brings the next decision at once."""


class Lock:
    """asyncio.Lock without a loop."""

    def __init__(self) -> None:
        self.is_held = False

    async def __aenter__(self) -> None:
        while self.is_held:
            await _interrupted()
        self.is_held = True

    async def __aexit__(self, *_: object) -> None:
        self.is_held = False


class Event:
    """asyncio.Event; who would wait finds that its time is over."""

    def __init__(self) -> None:
        self._is_set = False

    def set(self) -> None:
        self._is_set = True

    def clear(self) -> None:
        self._is_set = False

    def is_set(self) -> bool:
        return self._is_set

    async def wait(self) -> None:
        if not self._is_set:
            raise TimeoutError


class Control:
    """One control process. After `die` it is gone; while `is_frozen` it stands where it is."""

    def __init__(self, railway: Railway, name: str) -> None:
        self.railway, self.world, self.name = railway, railway.world, name
        self.turns = Turns(railway.sql, SETTINGS, lambda _: None)  # type: ignore[arg-type]
        self.is_dead = self.is_frozen = False
        self.ear = Ear(self.world.clock)
        self._was_deaf_at = self.world.clock
        """When it began, or last found Redis or SQL away."""
        self._running: dict[str, Coroutine[Any, Any, None]] = {}
        for turn in EVERY:
            if turn == "rotate" and not self.world.rotates:
                continue
            self.world.after(self.world.between(0, 0.5), self._step, turn)

    def die(self) -> None:
        self.is_dead = True
        for turn in self._running.values():
            turn.close()

    def poke(self) -> None:
        self.turns.poked.set()
        self.world.after(0.02, self._step, "decide", True)

    def _step(self, turn: str, is_extra: bool = False) -> None:
        if self.is_dead or (is_extra and turn in self._running):
            return
        pause = EVERY[turn]
        if self.is_frozen:
            self.world.after(pause, self._step, turn)
            return
        self.railway.books.ear = self.ear
        if turn == "rescue" and turn not in self._running:
            self.ear.since = self._was_deaf_at
        coroutine = self._running.pop(turn, None) or getattr(self.turns, turn)()
        try:
            coroutine.send(None)
        except StopIteration:
            if turn == "read_inbox" and self.turns.poked.is_set():
                self.world.after(0.02, self._step, "decide", True)
        except Unavailable:
            self.turns.sql_is_away()
            self._was_deaf_at = self.world.clock
        except AWAY:
            # As service.control.process has it.
            if turn == "read_inbox":
                self.turns.redis_is_away()
                self._was_deaf_at = self.world.clock
        else:
            self._running[turn] = coroutine
            pause = 0.01 if self.world.chance(0.7) else self.world.between(0.05, 3.0)
        if not is_extra:
            # An extra one that is interrupted goes on with the regular ones.
            self.world.after(pause * self.world.between(0.8, 1.2), self._step, turn)


class Loop:
    async def run_in_executor(self, _thread: object, fn: Callable[..., Any], *args: Any) -> Any:
        return fn(*args)


@asynccontextmanager
async def _timeout(_seconds: float) -> AsyncIterator[None]:
    yield


def _is_a_bug(text: str, *_: object, **__: object) -> None:
    """Control logs what it did not expect, and goes on. Here nothing is unexpected."""
    raise


@contextmanager
def in_place_of_reality(world: World, redis: Redis, store: Store) -> Iterator[None]:
    """What control and workers see: simulated time, Redis and loop; buffers so small that they matter."""
    clock = SimpleNamespace(monotonic=lambda: world.clock)

    async def to_thread(fn: Callable[..., Any], *args: Any) -> Any:
        await world.breathe()
        done = fn(*args)
        await world.breathe()
        return done

    loop = SimpleNamespace(
        Lock=Lock,
        Event=Event,
        timeout=_timeout,
        get_running_loop=Loop,
        TimeoutError=asyncio.TimeoutError,
        to_thread=to_thread,
    )
    turns: dict[str, Any] = {
        "time": clock,
        "now_ms": world.now_ms,
        "asyncio": loop,
        "Redis": SimpleNamespace(from_url=lambda *_, **__: AsyncLine(redis)),
        "Bell": lambda _url: Bell(redis),
        "ThreadPoolExecutor": lambda *_, **__: SimpleNamespace(submit=lambda *_: None),
        "MAX_MESSAGES": 6,
        "MAX_ENTRIES": 4,
    }
    upkeep: dict[str, Any] = {
        "time": clock,
        "now_ms": world.now_ms,
        "asyncio": loop,
        "Remover": lambda: SimpleNamespace(remove=lambda _, going, __: store.remove_all(going), stuck=0),
    }
    control = {
        "time": clock,
        "BATCH_EVENTS": 4,
        "WINDOW_EVENTS": 12,
        "SILENCE_SECONDS": 3.0,
        "LONGEST_SILENCE_SECONDS": 8.0,
    }
    with ExitStack() as stack:
        stack.enter_context(patch.multiple(service.control.turns, **turns))
        stack.enter_context(patch.multiple(service.control.cleanup, **upkeep))
        stack.enter_context(patch.object(service.control.turns.log, "exception", _is_a_bug))
        stack.enter_context(patch.multiple(worker.attempt.control_link, **control))
        stack.enter_context(patch.multiple(worker.attempt.journal, INDEX_EVERY=4, FORGET_BYTES=600))
        yield
