"""The Celery app: `celery -A worker.app worker` and `python -m worker` start the same node.

Celery is a doorbell here. A message says "attempt 2 of job J may start on you", and is worth nothing by itself: SQL
grants the attempt to one asker, and rings again where nobody came. Every setting below follows from that.
"""

from __future__ import annotations

from celery import Celery
from kombu.entity import Exchange, Queue

from footplate.contract import keys
from footplate.contract.ids import NodeId
from worker.redis_client import SOCKET_SECONDS
from worker.settings import WorkerSettings


def queue_of(node: NodeId) -> Queue:
    """A node's queue. With a named exchange: an empty one would put the message into the list `celery`."""
    name = keys.queue(node)
    return Queue(name, Exchange(name, type="direct"), routing_key=name)  # type: ignore[no-untyped-call]


def configuration(settings: WorkerSettings) -> dict[str, object]:
    return {
        "broker_url": keys.broker_url(settings.redis),
        # JSON only: a message must not be able to run code.
        "task_serializer": "json",
        "accept_content": ["json"],
        # No result backend: what came of an attempt is told by its events.
        "result_backend": None,
        "task_ignore_result": True,
        # Acknowledged on acceptance. With late acks a task that outlives the visibility timeout is started again while
        # it runs, and nothing renews that timeout. Leases in SQL recover what is lost.
        "task_acks_late": False,
        # A message that waits behind a running attempt is one that another node could have had.
        "worker_prefetch_multiplier": 1,
        "worker_disable_prefetch": True,
        # Stopping is a fact in SQL. A remote-control broadcast that nobody hears is lost.
        "worker_enable_remote_control": False,
        # No mingle, gossip or heartbeats among workers, and nobody reads Celery's own events: nodes tell the service.
        "worker_consumer": "worker.node.consumer:SilentConsumer",
        "worker_send_task_events": False,
        "task_send_sent_event": False,
        # A mistyped queue raises here instead of filling a list that nobody empties.
        "task_create_missing_queues": False,
        "task_queues": [],
        # A Redis that is away is waited for, for ever. Training goes on meanwhile, and must not be killed for it.
        "broker_connection_retry": True,
        "broker_connection_retry_on_startup": True,
        "broker_connection_max_retries": None,
        "worker_cancel_long_running_tasks_on_connection_loss": False,
        "broker_transport_options": {
            "visibility_timeout": keys.VISIBILITY_SECONDS,
            # Without them a frozen Redis freezes the consumer for good.
            "socket_timeout": SOCKET_SECONDS,
            "socket_connect_timeout": 2.0,
            "socket_keepalive": True,
        },
        # Longer than a checkpoint takes: the backstop behind our own drain (parent.py).
        "worker_soft_shutdown_timeout": settings.drain_seconds,
        # Attempts print through their own pipes, and our log is not a task's business.
        "worker_redirect_stdouts": False,
        "include": ["worker.node.tasks"],
    }


app = Celery("footplate")
app.conf.update(configuration(WorkerSettings.from_environment()))

# Connects Celery's signals: identity and queue, the warm parent, heartbeats, drain.
from worker.node import parent  # noqa: E402

parent.connect()
