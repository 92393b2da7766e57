"""Control: the one process that decides, as turns that are taken again and again.

decide       placement of what waits, bells of what is placed, stops of what shall stop      poked, or every poll
read_inbox   claims and heartbeats from workers, answered                                    as they come
ingest       events from Redis into SQL, acknowledged                                        as they come
listen       pokes from other API processes                                                  as they come
deliver      what webhooks are to be told                                                    as it comes
rescue       what is silent, overdue or out of time                                          every second
watch_epoch  whether Redis has forgotten everything, so that every bell rings again          every second
prune        what nobody will ask for again                                                  every hour
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Collection
from contextlib import suppress

from footplate.contract.errors import Unavailable
from footplate.contract.ids import JobId
from footplate.contract.repeated_errors import Repeated
from service.control.counters import Counts
from service.control.turns import AWAY, RESCUE_SECONDS, NotSure, Turns
from service.settings import ServiceSettings
from service.store.control_lock import single
from service.store.database import Database

log = logging.getLogger("footplate.control")

LOCK_SECONDS = 1.0
"""Between two looks at the lock."""
SURE_SECONDS = 3.0
"""Who has not looked for this long was frozen, or starved: another control may work by now."""
PRUNE_SECONDS = 3600.0
GATHER_SECONDS = 0.02
"""Between two decisions. The first poke is heard at once; those that follow it closely are one."""
FIRST_BACKOFF, LONGEST_BACKOFF = 0.1, 1.0

Turn = Callable[[], Awaitable[None]]


class Control:
    """`on_events` hears which jobs have new events, after the commit, on the loop that `run` runs on."""

    def __init__(
        self,
        db: Database,
        settings: ServiceSettings,
        on_events: Callable[[Collection[JobId]], None] = lambda _: None,
    ) -> None:
        self.is_active = False
        """Holds the lock and works."""
        self._settings = settings
        self._looked_at = float("-inf")
        self._turns = Turns(db, settings, on_events, self._is_alone)
        self._lock = single(settings.database_url)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closing = asyncio.Event()

    @property
    def counts(self) -> Counts:
        return self._turns.counts

    def numbers(self) -> dict[str, int] | None:
        """The same for who only shows them; None while another control works."""
        return self._turns.numbers() if self.is_active else None

    @property
    def redis_ok(self) -> bool:
        return self._turns.redis_ok

    async def run(self) -> None:
        """Until closed: waits for the lock, works while it holds it."""
        self._loop = asyncio.get_running_loop()
        try:
            while not self._closing.is_set():
                if await self._holds(self._lock.try_take):
                    await self._work()
                else:
                    await self._sleep(LOCK_SECONDS)
        finally:
            self._lock.release()
            await self._turns.close()

    def poke(self) -> None:
        """Something waits, or shall stop. From any thread."""
        if self._loop is not None and not self._turns.poked.is_set():
            with suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._turns.poked.set)

    async def close(self) -> None:
        """`run` ends. What is cut off between a commit and its answer is found by the next control."""
        self._closing.set()

    async def _work(self) -> None:
        log.info("control works on %s", self._settings.database_url.partition("://")[0])
        turns = self._turns
        turns.begin()
        self.is_active = True
        tasks = [
            asyncio.create_task(self._again_and_again(turn, pause))
            for turn, pause in (
                (turns.decide, GATHER_SECONDS),
                (turns.read_inbox, 0.0),
                (turns.ingest, 0.0),
                (turns.listen, 0.0),
                (turns.deliver, 0.0),
                (turns.rescue, RESCUE_SECONDS),
                (turns.watch_epoch, RESCUE_SECONDS),
                (turns.rotate, RESCUE_SECONDS),
                (turns.prune, PRUNE_SECONDS),
            )
        ]
        try:
            while not self._closing.is_set():
                if not await self._holds(self._lock.is_held):
                    log.warning("control has lost its lock, and waits for it again")
                    break
                await self._sleep(LOCK_SECONDS)
        finally:
            self.is_active = False
            self._looked_at = float("-inf")
            await _end(tasks)
            await turns.pause()
            self._lock.release()

    async def _holds(self, ask: Callable[[], bool]) -> bool:
        asked_at = time.monotonic()
        held = await asyncio.to_thread(ask)
        # Of an answer that took long nobody knows how old it is: it was true at some time since we asked.
        self._looked_at = asked_at if held else float("-inf")
        return held

    def _is_alone(self) -> bool:
        return time.monotonic() - self._looked_at < SURE_SECONDS

    async def _again_and_again(self, turn: Turn, pause: float) -> None:
        """The only retry there is. What a turn could not do now, the next one will."""
        name, backoff = getattr(turn, "__name__", "turn"), FIRST_BACKOFF
        said = Repeated(log, name)
        # Closed, it would sleep no more: a turn that fails at once would never let anybody else run.
        while self.is_active and not self._closing.is_set():
            try:
                await turn()
            except Unavailable as error:
                self._turns.sql_is_away()
                said.failed("waits for the database: %s", error)
            except NotSure as error:
                said.failed("waits for the lock: %s", error)
            except AWAY as error:
                # Some touch files and SQL only.
                said.failed("could not clean up: %s" if name in ("prune", "rotate") else "waits for Redis: %s", error)
                # The inbox is the one that hears: whether anyone is silent depends on it alone.
                if name == "read_inbox":
                    self._turns.redis_is_away()
            except Exception as error:
                said.failed("failed, and is tried again: %r", error, trace=True)
            else:
                said.went_well()
                backoff = FIRST_BACKOFF
                await self._sleep(pause)
                continue
            await self._sleep(backoff)
            backoff = min(backoff * 2, LONGEST_BACKOFF)

    async def _sleep(self, seconds: float) -> None:
        if seconds:
            with suppress(asyncio.TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._closing.wait()


async def _end(tasks: Collection[asyncio.Task[None]]) -> None:
    """Cancelled once more each second: what a turn awaits may swallow a cancel that comes while it fails or times out,
    and a control that waited for that turn would never work again."""
    while tasks:
        for task in tasks:
            task.cancel()
        _, tasks = await asyncio.wait(tasks, timeout=1.0)
