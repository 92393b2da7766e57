"""The connection of a node's processes to Redis, with short timeouts and without redis-py's own retries.

By default, redis-py repeats a command that got no answer. If Redis only stalled, one XADD then adds several entries.
"""

from __future__ import annotations

from typing import Any

import redis
from redis.backoff import NoBackoff
from redis.exceptions import RedisError
from redis.retry import Retry

from footplate.contract import redis_keys
from footplate.contract.messages import ProtocolMessage

SOCKET_SECONDS = 5.0
BLOCK_SECONDS = 3.0
"""The longest time of a blocking read. It must be shorter than the socket's timeout, or the read always fails."""

REDIS_ERRORS = (RedisError, OSError)
"""The errors that redis-py raises if Redis is down, frozen, loading or full."""


def connect(url: str) -> redis.Redis:
    """Returns a client that connects when it is first used."""
    # redis-py refuses these options for a Unix socket.
    tcp: dict[str, Any] = {} if url.startswith("unix:") else {"socket_connect_timeout": 2.0, "socket_keepalive": True}
    return redis.Redis.from_url(
        url,
        protocol=2,
        socket_timeout=SOCKET_SECONDS,
        **tcp,
        retry=Retry(NoBackoff(), 0),
        driver_info=None,
    )


def post(pipeline: Any, message: ProtocolMessage) -> None:
    """Appends a message to control's inbox. The inbox has a limit, and dropped messages are sent again."""
    pipeline.rpush(redis_keys.INBOX, message.model_dump_json())
    pipeline.ltrim(redis_keys.INBOX, -redis_keys.INBOX_LIMIT, -1)


class Listener:
    """Pops entries of a Redis list without blocking. The answer to BLPOP is read only when the socket is readable."""

    def __init__(self, client: redis.Redis, key: str) -> None:
        self._key = key
        self._pool = client.connection_pool
        connection: Any = self._pool.get_connection()
        self._connection = connection
        self.fd = int(connection._get_socket().fileno())
        self._send_blpop()

    def read(self) -> bytes | None:
        """Returns the popped entry, or None if BLPOP timed out. Call this only when the socket is readable."""
        answer = self._connection.read_response()
        self._send_blpop()
        return bytes(answer[1]) if answer else None

    def close(self) -> None:
        # A BLPOP may still be waiting, so no other caller can use this connection.
        self._connection.disconnect()
        self._pool.release(self._connection)

    def _send_blpop(self) -> None:
        self._connection.send_command("BLPOP", self._key, BLOCK_SECONDS)
