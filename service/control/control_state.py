"""The state that the duties of control share. SQL holds everything that must survive a restart."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Concatenate, ParamSpec, TypeVar

from sqlalchemy import Connection

from footplate.contract import redis_keys
from footplate.contract.errors import Unavailable
from footplate.contract.ids import JobId
from footplate.contract.messages import ProtocolMessage
from footplate.contract.outbound import Allowed
from service.control.celery_producer import CeleryProducer, send_all
from service.counters import Counts, Depths
from service.jobs.beat import StopLeft
from service.jobs.place import QueueState
from service.jobs.remove_folders import Remover
from service.jobs.rescue import Timers, stop_left
from service.redis_client import UNREACHABLE, connect
from service.settings import ServiceSettings
from service.store.database import Database
from service.store.queue import UnclaimedSource
from service.store.times import now_ms
from service.webhooks.deliver import WebhookSender

P = ParamSpec("P")
T = TypeVar("T")

BLOCK_SECONDS = 1
"""The longest time that a read of Redis may block. A limit above the socket timeout would make every idle read fail."""
STALE_SECONDS = 1.5
"""The seconds without an answer after which Redis may be frozen. No lease runs out while Redis may be frozen."""


class LockUncertain(Exception):
    """The lock was not checked for a while, so another control process may have taken over."""


class ControlIo:
    """Redis, Celery, clocks and threads, which are all that duties use besides SQL. The simulation replaces them."""

    clock = staticmethod(time.monotonic)
    now_ms = staticmethod(now_ms)

    def __init__(self, redis_url: str) -> None:
        # A stream's entries have another form in version 3 of Redis's protocol.
        self.redis = connect(redis_url, protocol=2)
        self.remover = Remover()
        self._producer = CeleryProducer(redis_url)
        self._producer_thread = ThreadPoolExecutor(1, thread_name_prefix="celery-producer")

    async def in_thread(self, fn: Callable[..., T], *args: Any) -> T:
        """Runs a function that blocks, in a thread."""
        return await asyncio.to_thread(fn, *args)

    def warm_up(self) -> None:
        """Connects the producer in its thread, so that the first job does not wait for the connection.

        An error is ignored, because the first start message would report it.
        """
        self._producer_thread.submit(self._producer.warm)

    async def send_start_messages(
        self, rows: Sequence[UnclaimedSource]
    ) -> tuple[list[UnclaimedSource], Exception | None]:
        """Sends start messages until one fails. Returns the rows whose messages were sent, and the error or None."""
        return await asyncio.get_running_loop().run_in_executor(self._producer_thread, send_all, self._producer, rows)

    async def wait(self, event: asyncio.Event, seconds: float) -> None:
        """Returns once the event is set or the time is over."""
        with suppress(asyncio.TimeoutError):
            async with asyncio.timeout(seconds):
                await event.wait()

    async def close(self) -> None:
        """Closes the connections, and waits for a message that is being sent."""
        await asyncio.to_thread(self._producer_thread.shutdown)
        self._producer.close()
        with suppress(*UNREACHABLE):
            await self.redis.aclose()


@dataclass(slots=True)
class InMemoryState:
    """The data that control keeps in memory while it holds the lock.

    With an empty memory, every lease starts from now, every start message is sent again, and placements are planned
    again.
    """

    timers: Timers = field(default_factory=Timers)
    send_everything: bool = True
    slots_changed: bool = True
    """Nodes may have free slots that the last plan did not know."""
    queue_state: QueueState | None = None
    """The state of queue and nodes at the last plan, if this plan found no job to start."""
    placed_at: float = 0.0
    rescued_at: float = 0.0
    redis_answered_at: float = 0.0
    pushed: set[tuple[str, int]] = field(default_factory=set)
    """The stops and commands that were pushed to their attempts."""
    depths: Depths = field(default_factory=Depths)
    unreadable: Depths = field(default_factory=Depths)


class ControlState:
    """The database, the input and output, the counters and the memory that all duties work on."""

    def __init__(
        self,
        db: Database,
        settings: ServiceSettings,
        io: ControlIo,
        on_events: Callable[[Collection[JobId]], None] = lambda _: None,
        is_alone: Callable[[], bool] = lambda: True,
    ) -> None:
        """Creates the state. `is_alone` returns True, without blocking, if no other control can hold the lock."""
        self.db, self.settings, self.io = db, settings, io
        self._on_events, self._is_alone = on_events, is_alone
        self.counts, self.memory = Counts(), InMemoryState()
        self.redis_ok = False
        self.oldest_unread_ms: int | None = None
        """The time at which the oldest event that SQL does not have was put into Redis."""
        self.woken = asyncio.Event()
        self.webhook_sender = WebhookSender(db.read, self.write, Allowed.of(settings.webhooks_allow))
        self._writing = asyncio.Lock()

    def begin(self) -> None:
        """Empties the memory when this process gets the lock, because another control may have worked before."""
        self.memory = InMemoryState()
        self.io.warm_up()

    def numbers(self) -> dict[str, int]:
        """Updates the numbers of webhooks and of ingest, and returns all counters and gauges by name."""
        counts, waits_since = self.counts, self.oldest_unread_ms
        counts.webhooks_delivered, counts.webhooks_failed = self.webhook_sender.delivered, self.webhook_sender.failed
        counts.ingest_lag_ms = 0 if waits_since is None else max(0, self.io.now_ms() - waits_since)
        return counts.numbers()

    async def write(self, fn: Callable[Concatenate[Connection, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Runs one write transaction at a time. Two at once could deadlock, because both lock many jobs in any order.

        Raises LockUncertain if another control process may hold the lock.
        """

        def write(conn: Connection) -> T:
            if not self._is_alone():
                raise LockUncertain("the lock was not checked for a while, and another control may hold it")
            return fn(conn, *args, **kwargs)

        async with self._writing:
            return await self.db.write(write)

    async def try_write(
        self, fn: Callable[Concatenate[Connection, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T | Exception:
        """Does the same as `write`, but returns the error of `fn`. Raises if nothing can be written now."""
        try:
            return await self.write(fn, *args, **kwargs)
        except (Unavailable, LockUncertain, *UNREACHABLE):
            raise
        except Exception as error:
            return error

    async def send(self, replies: Sequence[tuple[str, ProtocolMessage]]) -> None:
        """Pushes each reply to its list in Redis."""
        if not replies:
            return
        async with self.io.redis.pipeline(transaction=False) as pipeline:
            for key, message in replies:
                push_reply(pipeline, key, message)
            await pipeline.execute()

    def announce(self, job_ids: Iterable[JobId]) -> None:
        """Wakes the readers that wait for events of these jobs."""
        if changed_jobs := set(job_ids):
            self._on_events(changed_jobs)

    def request_new_plan(self) -> None:
        """Wakes the duty `decide`, which then plans placements again because slots or jobs have changed."""
        self.memory.slots_changed = True
        self.woken.set()

    def stop_left(self) -> StopLeft:
        """Returns a function that computes how many seconds a stopping job has left before it is killed."""
        return partial(stop_left, timers=self.memory.timers, clock=self.io.clock(), settings=self.settings)

    # ── Outages: heartbeats that could not be read are not missing ─────────────────────────────────────────────────

    def renew_leases(self) -> None:
        """Starts every lease and deadline again from now."""
        self.memory.timers.restart_all(self.io.clock())

    def record_database_outage(self) -> None:
        """Counts an outage of the database, during which heartbeats wait unread."""
        self.counts.database_outages += 1
        self.renew_leases()

    def record_redis_outage(self) -> None:
        """Counts the start of an outage of Redis."""
        self.counts.redis_outages += self.redis_ok
        self.redis_ok = False

    def record_redis_answer(self, seconds: float) -> None:
        """Records that Redis answered a blocking read after this many seconds."""
        self.memory.redis_answered_at = self.io.clock()
        if not self.redis_ok or seconds > STALE_SECONDS:
            self.renew_leases()
        self.redis_ok = True


def push_reply(pipeline: Any, key: str, message: ProtocolMessage) -> None:
    """Adds a reply to a pipeline. The list expires, because its reader may be dead."""
    pipeline.rpush(key, message.model_dump_json())
    pipeline.expire(key, redis_keys.REPLY_TTL_SECONDS)
