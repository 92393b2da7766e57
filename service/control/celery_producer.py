"""Publishes the start message of an attempt: a Celery message with ids only, in the queue of one node.

A second message is harmless, because a claim is granted once. A message that was not sent, or was lost with its Redis,
is sent again while the attempt is not claimed.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING

from redis.exceptions import RedisError

from footplate.contract import redis_keys
from footplate.contract.ids import Fence, JobId, NodeId
from service.store.queue import UnclaimedSource

if TYPE_CHECKING:
    from celery import Celery


class CeleryProducer:
    """Sends Celery tasks to the queues of nodes. Sending may block, so it runs in a thread of its own."""

    def __init__(self, redis_url: str) -> None:
        self._redis_url = redis_url

    @cached_property
    def _app(self) -> Celery:
        # Imported by the sending thread, because the import would slow every start by a quarter of a second.
        from celery import Celery

        app = Celery("footplate", broker=redis_keys.broker_url(self._redis_url), set_as_current=False)
        app.conf.update(
            task_serializer="json",
            accept_content=["json"],
            task_ignore_result=True,
            # Only control's own loop retries, because a retry inside of Celery would send twice and hide an outage.
            task_publish_retry=False,
            broker_connection_retry=False,
            broker_transport_options={
                "visibility_timeout": redis_keys.VISIBILITY_SECONDS,
                "socket_timeout": 5,
                "socket_connect_timeout": 2,
                "retry_on_timeout": False,
                "max_retries": 0,
            },
        )
        return app

    def warm(self) -> None:
        """Imports Celery and connects to Redis, so that the first start message does not wait for either."""
        with self._app.producer_or_acquire() as producer:
            producer.connection.default_channel.client.ping()

    def send(self, node: NodeId, job: JobId, attempt: int, fence: Fence) -> None:
        # Celery creates the queue with an exchange of the same name, as the node does.
        self._app.send_task(
            redis_keys.TASK,
            kwargs={"job": job, "attempt": attempt, "fence": fence},
            queue=redis_keys.queue(node),
            ignore_result=True,
            retry=False,
        )

    def close(self) -> None:
        # A control process that never got the lock has not imported Celery, and would take a second for it now.
        if "_app" in vars(self):
            self._app.close()


def send_all(
    producer: CeleryProducer, rows: Sequence[UnclaimedSource]
) -> tuple[list[UnclaimedSource], Exception | None]:
    """Sends messages until one fails. Returns the rows whose messages were sent, and the error."""
    from kombu.exceptions import OperationalError

    sent_rows: list[UnclaimedSource] = []
    for row in rows:
        try:
            producer.send(row.node, row.job_id, row.attempt, row.fence)
        except (OSError, RedisError, OperationalError) as error:
            return sent_rows, error
        sent_rows.append(row)
    return sent_rows, None
