"""The control process: waits for the lock, and runs every duty in a loop while it holds the lock."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Collection
from contextlib import suppress

from footplate.contract.errors import Unavailable
from footplate.contract.ids import JobId
from footplate.contract.repeated_errors import ErrorLog
from service.control.control_state import ControlIo, ControlState, LockUncertain
from service.control.duties import DUTIES, Duty
from service.end_tasks import end_tasks
from service.redis_client import UNREACHABLE
from service.settings import ServiceSettings
from service.store.control_lock import control_lock
from service.store.database import Database

log = logging.getLogger("footplate.control")

LOCK_SECONDS = 1.0
"""The time between two checks of the lock."""
CERTAIN_SECONDS = 3.0
"""The time after a check in which this process certainly has the lock. If the process was frozen for longer, another
process may have taken the lock."""
FIRST_BACKOFF_SECONDS, LONGEST_BACKOFF_SECONDS = 0.1, 1.0


class Control:
    """One control process. `on_events` is called with the jobs that have new events, in the event loop of `run`."""

    def __init__(
        self,
        db: Database,
        settings: ServiceSettings,
        on_events: Callable[[Collection[JobId]], None] = lambda _: None,
    ) -> None:
        self.is_active = False
        """True while this process holds the lock and works."""
        self._settings = settings
        self._checked_at = float("-inf")
        self._state = ControlState(db, settings, ControlIo(settings.redis), on_events, self._is_alone)
        self._lock = control_lock(settings.database_url)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closing = asyncio.Event()

    async def numbers(self) -> dict[str, int] | None:
        """Returns all counters for display, or None while another control process works."""
        return self._state.numbers() if self.is_active else None

    async def run(self) -> None:
        """Waits for the lock and works while holding the lock, until `close`."""
        self._loop = asyncio.get_running_loop()
        try:
            while not self._closing.is_set():
                if await self._check(self._lock.try_take):
                    await self._work()
                else:
                    await self._sleep(LOCK_SECONDS)
        finally:
            self._lock.release()
            await self._state.io.close()

    def wake(self) -> None:
        """Makes control run the duty `decide` at once. Any thread may call this function."""
        if self._loop is not None and not self._state.woken.is_set():
            with suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._state.woken.set)

    async def close(self) -> None:
        """Makes `run` end. If a reply to a committed message was not sent, the next control process sends the reply."""
        self._closing.set()

    async def _work(self) -> None:
        log.info(
            "control is active in this process, with a database of the kind %s",
            self._settings.database_url.partition("://")[0],
        )
        self._state.begin()
        self.is_active = True
        tasks = [asyncio.create_task(self._repeat(duty)) for duty in DUTIES]
        try:
            while not self._closing.is_set():
                if not await self._check(self._lock.is_held):
                    log.warning("control has lost its lock, and waits for the lock again")
                    break
                await self._sleep(LOCK_SECONDS)
        finally:
            self.is_active = False
            self._checked_at = float("-inf")
            await end_tasks(*tasks)
            await self._state.webhook_sender.stop()
            self._lock.release()

    async def _repeat(self, duty: Duty) -> None:
        """Runs one duty in a loop until control stops, and retries after errors. Duties do not retry by themselves."""
        state, backoff, failures = self._state, FIRST_BACKOFF_SECONDS, ErrorLog(log, f"the duty {duty.name}")
        # While closing, `_sleep` returns at once. A duty that fails at once would then block the event loop.
        while self.is_active and not self._closing.is_set():
            try:
                await duty.run(state)
            except Unavailable as error:
                state.record_database_outage()
                failures.failed("waits for the database: %s", error)
            except LockUncertain as error:
                failures.failed("waits for the lock: %s", error)
            except UNREACHABLE as error:
                failures.failed(duty.trouble, error)
            except Exception as error:
                failures.failed("failed, and is tried again: %r", error, trace=True)
            else:
                failures.went_well()
                backoff = FIRST_BACKOFF_SECONDS
                await self._sleep(duty.pause_seconds)
                continue
            await self._sleep(backoff)
            backoff = min(backoff * 2, LONGEST_BACKOFF_SECONDS)

    async def _check(self, is_ours: Callable[[], bool]) -> bool:
        # A slow check only proves that the lock was held at some moment after `asked_at`. So `asked_at` itself counts.
        asked_at = time.monotonic()
        is_held = await asyncio.to_thread(is_ours)
        self._checked_at = asked_at if is_held else float("-inf")
        return is_held

    def _is_alone(self) -> bool:
        return time.monotonic() - self._checked_at < CERTAIN_SECONDS

    async def _sleep(self, seconds: float) -> None:
        if seconds:
            await self._state.io.wait(self._closing, seconds)
