"""The messages between API processes and control over Redis. A lost message only delays the receiver.

- `wake`, from control to API processes: these jobs have new events. API processes also read watched jobs each second.
- `wake_control`, from API processes to control: a job or a request waits. Control also reads SQL at an interval.
- `control`, a key that control sets: its counters, which show that control works until the key expires.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any

from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

from footplate.contract import redis_keys
from footplate.contract.ids import JobId, uuid7
from service.end_tasks import end_tasks
from service.store.times import now_ms

Numbers = Mapping[str, int]
ControlNumbers = Callable[[], Awaitable[Numbers | None]]
"""A function that returns control's counters and gauges, or None if no control process works."""

PUBLISH_COUNTS_SECONDS = 2.0
GATHER_SECONDS = 0.02
RETRY_SECONDS = 1.0
UNREACHABLE = (RedisError, OSError, asyncio.TimeoutError)
"""The errors that mean that Redis or a file system does not answer."""


def connect(url: str, **options: Any) -> Redis:
    """Returns a client. redis-py's own retries would send each command several times to a Redis that stalls."""
    return Redis.from_url(url, socket_timeout=5, socket_connect_timeout=2, retry=Retry(NoBackoff(), 0), **options)


class RedisNotifier:
    """Sends the messages of an API or control process over Redis, and receives them in an API process."""

    def __init__(self, url: str, on_wake: Callable[[Iterable[JobId]], None] | None = None) -> None:
        """Takes a function to call with the jobs in messages `wake`. Without a function, no messages are received."""
        self.redis = connect(url, decode_responses=True)
        self._on_wake = on_wake
        self._me = uuid7()
        """The id of this process in the messages that it sends, by which it ignores its own messages."""
        self.away_since_ms: int | None = None
        """The time of the first failure since Redis last answered, for display. None: Redis answers."""
        self._pending: set[JobId] = set()
        self._must_wake_control = False
        self._has_messages = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    def start(self, control: ControlNumbers | None = None) -> None:
        """Starts the background tasks that send and receive messages.

        `control` is for a process that may be control. It returns the counters to publish in Redis, or None
        while another process is the active control.
        """
        loops = [self._send()]
        if self._on_wake is not None:
            loops.append(self._listen(self._on_wake))
        if control:
            loops.append(self._publish_control_counts(control))
        self._tasks = [asyncio.create_task(loop) for loop in loops]

    def announce(self, job_ids: Iterable[JobId]) -> None:
        self._pending.update(job_ids)
        self._has_messages.set()

    def wake_control(self) -> None:
        self._must_wake_control = True
        self._has_messages.set()

    async def is_there(self) -> bool:
        try:
            async with asyncio.timeout(1):
                await self.redis.ping()
        except UNREACHABLE:
            self._missed()
            return False
        self.away_since_ms = None
        return True

    async def control(self) -> Numbers | None:
        """Returns the counters that the control process publishes, or None if they have expired."""
        try:
            async with asyncio.timeout(1):
                text = await self.redis.get(redis_keys.CONTROL)
            return dict(json.loads(text)) if text else None
        except (*UNREACHABLE, ValueError):
            return None

    async def close(self) -> None:
        await end_tasks(*self._tasks)
        with suppress(*UNREACHABLE):
            await self.redis.aclose()

    def _missed(self) -> None:
        self.away_since_ms = self.away_since_ms or now_ms()

    async def _send(self) -> None:
        while True:
            await self._has_messages.wait()
            self._has_messages.clear()
            jobs, self._pending = self._pending, set()
            must_wake_control, self._must_wake_control = self._must_wake_control, False
            try:
                if must_wake_control:
                    await self.redis.publish(redis_keys.WAKE_CONTROL, "")
                if jobs:
                    await self.redis.publish(redis_keys.WAKE, " ".join((self._me, *jobs)))
                # The first message is sent at once. Those of the next 20 ms are sent together.
                await asyncio.sleep(GATHER_SECONDS)
            except UNREACHABLE:
                self._missed()
                await asyncio.sleep(RETRY_SECONDS)

    async def _listen(self, on_wake: Callable[[Iterable[JobId]], None]) -> None:
        while True:
            # A ValueError comes from a message of another program, which has no words or is not text.
            with suppress(*UNREACHABLE, ValueError):
                async with self.redis.pubsub(ignore_subscribe_messages=True) as channel:
                    await channel.subscribe(redis_keys.WAKE)
                    while True:
                        if message := await channel.get_message(timeout=1.0):
                            sender, *jobs = message["data"].split()
                            if sender != self._me:
                                on_wake(map(JobId, jobs))
            await asyncio.sleep(0.5)

    async def _publish_control_counts(self, control: ControlNumbers) -> None:
        while True:
            if (counts := await control()) is not None:
                try:
                    await self.redis.set(redis_keys.CONTROL, json.dumps(counts), px=int(PUBLISH_COUNTS_SECONDS * 3000))
                    self.away_since_ms = None
                except UNREACHABLE:
                    self._missed()
            await asyncio.sleep(PUBLISH_COUNTS_SECONDS)
