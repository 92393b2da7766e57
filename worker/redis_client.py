"""How this node's processes reach Redis: short timeouts, and no retries but our own.

redis-py repeats a command ten times by default, which turns one XADD into a stalled Redis into two entries.
"""

from __future__ import annotations

from typing import Any

import redis
from redis.backoff import NoBackoff
from redis.exceptions import RedisError
from redis.retry import Retry

from footplate.contract import keys
from footplate.contract.messages import Message

SOCKET_SECONDS = 5.0
BLOCK_SECONDS = 3.0
"""How long a blocking read may block: always less than the socket timeout, or it never returns normally."""

AWAY = (RedisError, OSError)
"""What a Redis that is down, frozen, loading or full raises."""


def connect(url: str) -> redis.Redis:
    """A client that connects when it is first used."""
    # redis-py refuses what a Unix socket has no use for.
    tcp: dict[str, Any] = {} if url.startswith("unix:") else {"socket_connect_timeout": 2.0, "socket_keepalive": True}
    return redis.Redis.from_url(
        url,
        protocol=2,
        socket_timeout=SOCKET_SECONDS,
        **tcp,
        retry=Retry(NoBackoff(), 0),
        driver_info=None,
        decode_responses=False,
    )


def post(pipeline: Any, message: Message) -> None:
    """Puts a message into control's inbox. Capped, because each of them is repeated until it is answered."""
    pipeline.rpush(keys.INBOX, message.model_dump_json())
    pipeline.ltrim(keys.INBOX, -keys.INBOX_LIMIT, -1)


class Listener:
    """One list, popped without blocking the thread: asked for once, answered when its socket is readable."""

    def __init__(self, client: redis.Redis, key: str) -> None:
        self._key = key
        self._pool = client.connection_pool
        connection: Any = self._pool.get_connection()
        self._connection = connection
        self.fd = int(connection._get_socket().fileno())
        self._ask()

    def take(self) -> bytes | None:
        """What was pushed, or None where only the time was over. To be called when the socket is readable."""
        answer = self._connection.read_response()
        self._ask()
        return bytes(answer[1]) if answer else None

    def close(self) -> None:
        # The question may still be open: this connection can serve nobody else.
        self._connection.disconnect()
        self._pool.release(self._connection)

    def _ask(self) -> None:
        self._connection.send_command("BLPOP", self._key, BLOCK_SECONDS)
