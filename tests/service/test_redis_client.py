"""The messages by which control wakes API processes, over a real Redis."""

from __future__ import annotations

import pytest
from redis.asyncio import Redis

from footplate.contract import redis_keys
from footplate.contract.ids import new_job_id
from service.redis_client import RedisNotifier
from tests.support.processes import until_async
from tests.support.redis_server import RedisServer


@pytest.mark.parametrize("foreign", [b"", b"\xff"])
async def test_a_message_that_is_not_ours_does_not_end_the_wake_ups(foreign: bytes) -> None:
    server, woken, job = RedisServer().start(), set[str](), new_job_id()
    redis, notifier = Redis.from_url(server.url), RedisNotifier(server.url, woken.update)
    notifier.start()

    async def heard(message: bytes) -> bool:
        return bool(await redis.publish(redis_keys.WAKE, message))

    async def is_woken() -> bool:
        await heard(f"another-process {job}".encode())
        return job in woken

    try:
        await until_async(lambda: heard(foreign), what="the notifier listens")
        await until_async(is_woken, what="the notifier wakes the readers of the job")
    finally:
        await notifier.close()
        await redis.aclose()
        server.close()
