"""Ring a node's bell: a Celery message with ids in it, into that node's own queue.

Rung twice is harmless, since a claim is granted once. Not rung, or lost with its Redis, is rung again while nobody
has claimed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection

from footplate.contract import keys
from footplate.contract.ids import Fence, JobId, NodeId
from service.store import attempts, queue
from service.store.queue import BellRow

if TYPE_CHECKING:
    from celery import Celery
    from kombu.entity import Queue


class Bell:
    """The producing half of Celery. Blocks for as long as a socket may, so it is rung from a thread of its own."""

    def __init__(self, redis_url: str) -> None:
        self._redis_url = redis_url
        self._queues: dict[NodeId, Queue] = {}

    @cached_property
    def _app(self) -> Celery:
        # Imported by the thread that rings: it would make every start of the service wait for a quarter of a second.
        from celery import Celery

        app = Celery("footplate", broker=keys.broker_url(self._redis_url), set_as_current=False)
        app.conf.update(
            task_serializer="json",
            accept_content=["json"],
            task_ignore_result=True,
            task_create_missing_queues=False,
            # Ours is the only retry: a publish that was repeated below would ring twice and hide an outage.
            task_publish_retry=False,
            broker_connection_retry=False,
            broker_transport_options={
                "visibility_timeout": keys.VISIBILITY_SECONDS,
                "socket_timeout": 5,
                "socket_connect_timeout": 2,
                "retry_on_timeout": False,
                "max_retries": 0,
            },
        )
        return app

    def warm(self) -> None:
        """Imports and connects, so that the first job does not wait for it."""
        with self._app.producer_or_acquire() as producer:
            producer.connection.default_channel.client.ping()

    def ring(self, node: NodeId, job: JobId, attempt: int, fence: Fence) -> None:
        self._app.send_task(
            keys.TASK,
            kwargs={"job": job, "attempt": attempt, "fence": fence},
            queue=self._queue(node),
            ignore_result=True,
            retry=False,
        )

    def close(self) -> None:
        self._app.close()

    def _queue(self, node: NodeId) -> Queue:
        # The object, not its name: a name that is not configured raises, and an empty exchange with a routing key lands
        # silently in a list called `celery`, which nobody reads.
        from kombu.entity import Exchange, Queue

        if node not in self._queues:
            name = keys.queue(node)
            exchange = Exchange(name, type="direct")  # type: ignore[no-untyped-call]
            self._queues[node] = Queue(name, exchange, routing_key=name)  # type: ignore[no-untyped-call]
        return self._queues[node]


def due(rows: Sequence[BellRow], waited: Callable[[BellRow], float], ring_seconds: float) -> list[BellRow]:
    """Those that never rang, and those that rang and were not claimed for a while."""
    return [row for row in rows if row.rung_at is None or waited(row) > ring_seconds]


def ring_all(bell: Bell, rows: Sequence[BellRow]) -> tuple[list[BellRow], Exception | None]:
    """Rings until it cannot: what rang, and what stopped it."""
    rung: list[BellRow] = []
    for row in rows:
        try:
            bell.ring(row.node, row.job_id, row.attempt, row.fence)
        except OSError as error:
            return rung, error
        except Exception as error:
            if not _is_broker_away(error):
                raise
            return rung, error
        rung.append(row)
    return rung, None


def mark_rung(conn: Connection, rung: Sequence[BellRow], now: int) -> None:
    attempts.mark_rung(conn, [(row.job_id, row.attempt, row.source) for row in rung], now)


def unclaimed(conn: Connection) -> list[BellRow]:
    return queue.unclaimed(conn)


def _is_broker_away(error: Any) -> bool:
    from kombu.exceptions import OperationalError
    from redis.exceptions import RedisError

    return isinstance(error, OperationalError | RedisError)
