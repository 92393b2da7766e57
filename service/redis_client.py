"""Redis as the API sees it: courtesies only. Each of them may be lost, and nothing but a moment is.

wake      control -> API   these jobs have new events       (a watched job is looked at every second anyway)
poke      API -> control   something waits to be placed     (control looks by itself anyway)
control   control -> API   a control process works, and its counts      (expires; told by /readyz and /metrics)
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress

from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

from footplate.contract import keys
from footplate.contract.ids import JobId, uuid7
from service.store.times import now_ms

Numbers = Mapping[str, int]

SIGN_SECONDS = 2.0
GATHER_SECONDS = 0.02
AWAY_SECONDS = 1.0
AWAY = (RedisError, OSError, asyncio.TimeoutError)


class Pipe:
    def __init__(self, url: str, on_wake: Callable[[Iterable[JobId]], None] = lambda _: None) -> None:
        # Our loop is the only retry: redis-py's own would send everything several times to a Redis that stalls.
        self._redis: Redis = Redis.from_url(
            url, decode_responses=True, socket_timeout=5, socket_connect_timeout=2, retry=Retry(NoBackoff(), 0)
        )
        self._on_wake = on_wake
        self._me = uuid7()
        """Goes before what it announces, so that it is not woken by itself."""
        self.away_since_ms: int | None = None
        """When Redis was first missed, for display; None while it answers."""
        self._pending: set[JobId] = set()
        self._is_poked = False
        self._something = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    def start(self, *, control: Callable[[], Numbers | None] | None = None, listens: bool = False) -> None:
        """`control` answers what this process has counted while it decides; `listens` asks for others' wake-ups."""
        loops = [self._send()]
        if listens:
            loops.append(self._listen())
        if control:
            loops.append(self._sign(control))
        self._tasks = [asyncio.create_task(one) for one in loops]

    def announce(self, job_ids: Iterable[JobId]) -> None:
        self._pending.update(job_ids)
        self._something.set()

    def poke(self) -> None:
        self._is_poked = True
        self._something.set()

    async def is_there(self) -> bool:
        try:
            async with asyncio.timeout(1):
                await self._redis.ping()
        except AWAY:
            self._missed()
            return False
        self.away_since_ms = None
        return True

    async def control(self) -> Numbers | None:
        """What the control process has counted; None where none has signed lately."""
        try:
            async with asyncio.timeout(1):
                signed = await self._redis.get(keys.CONTROL)
            return dict(json.loads(signed)) if signed else None
        except (*AWAY, ValueError):
            return None

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        with suppress(*AWAY):
            await self._redis.aclose()

    def _missed(self) -> None:
        self.away_since_ms = self.away_since_ms or now_ms()

    async def _send(self) -> None:
        while True:
            await self._something.wait()
            self._something.clear()
            jobs, self._pending = self._pending, set()
            is_poked, self._is_poked = self._is_poked, False
            try:
                if is_poked:
                    await self._redis.publish(keys.POKE, "")
                if jobs:
                    await self._redis.publish(keys.WAKE, " ".join((self._me, *jobs)))
                # The first goes at once; what follows closely goes together.
                await asyncio.sleep(GATHER_SECONDS)
            except AWAY:
                self._missed()
                await asyncio.sleep(AWAY_SECONDS)

    async def _listen(self) -> None:
        while True:
            with suppress(*AWAY):
                async with self._redis.pubsub(ignore_subscribe_messages=True) as channel:
                    await channel.subscribe(keys.WAKE)
                    while True:
                        if message := await channel.get_message(timeout=1.0):
                            sender, *jobs = message["data"].split()
                            if sender != self._me:
                                self._on_wake(map(JobId, jobs))
            await asyncio.sleep(0.5)

    async def _sign(self, control: Callable[[], Numbers | None]) -> None:
        while True:
            if (counted := control()) is not None:
                try:
                    await self._redis.set(keys.CONTROL, json.dumps(counted), px=int(SIGN_SECONDS * 3000))
                    self.away_since_ms = None
                except AWAY:
                    self._missed()
            await asyncio.sleep(SIGN_SECONDS)
