"""The Celery app of a node, its configuration, and the queue of each node.

Celery carries start messages only. A start message says that an attempt may start on this node. The node then claims
the attempt from control, which sends the message again if no claim comes. Every setting below follows from that.
"""

from __future__ import annotations

from celery import Celery
from kombu.entity import Exchange, Queue

from footplate.contract import redis_keys
from footplate.contract.ids import NodeId
from worker.redis_client import SOCKET_SECONDS
from worker.settings import WorkerSettings


def queue_of(node: NodeId) -> Queue:
    """Returns a node's queue. Its exchange has a name, because an empty one delivers into the list `celery`."""
    name = redis_keys.queue(node)
    return Queue(name, Exchange(name, type="direct"), routing_key=name)  # type: ignore[no-untyped-call]


def configuration(settings: WorkerSettings) -> dict[str, object]:
    return {
        "broker_url": redis_keys.broker_url(settings.redis),
        # JSON only: a message must not be able to run code.
        "task_serializer": "json",
        "accept_content": ["json"],
        # Results of attempts are events, so Celery needs to store none.
        "result_backend": None,
        "task_ignore_result": True,
        # Tasks are acknowledged when they start. If they were acknowledged at their end, a task that runs longer than
        # the visibility timeout would be started again. Leases in SQL recover lost attempts.
        "task_acks_late": False,
        # No message is fetched in advance, because it would wait behind a running attempt while other nodes are free.
        "worker_prefetch_multiplier": 1,
        "worker_disable_prefetch": True,
        # Celery's remote control is off, because a broadcast that no worker receives is lost. Stops are rows in SQL.
        "worker_enable_remote_control": False,
        # Nodes report to the service, so workers need neither mingle, gossip and heartbeats nor Celery's events.
        "worker_consumer": "worker.node.parent:SilentConsumer",
        "worker_send_task_events": False,
        "task_send_sent_event": False,
        # A mistyped queue raises an error instead of filling a list that no worker reads.
        "task_create_missing_queues": False,
        "task_queues": [],
        # Redis is retried for ever. Training goes on meanwhile, and must not be killed.
        "broker_connection_retry": True,
        "broker_connection_retry_on_startup": True,
        "broker_connection_max_retries": None,
        "worker_cancel_long_running_tasks_on_connection_loss": False,
        "broker_transport_options": {
            "visibility_timeout": redis_keys.VISIBILITY_SECONDS,
            # Without timeouts, a frozen Redis freezes the consumer for ever.
            "socket_timeout": SOCKET_SECONDS,
            "socket_connect_timeout": 2.0,
            "socket_keepalive": True,
        },
        # The time in which tasks may end at a shutdown. Our own drain (parent.py) ends attempts first.
        "worker_soft_shutdown_timeout": settings.drain_seconds,
        # A new pool process on a busy machine needs more than the four seconds after which Celery kills it.
        "worker_proc_alive_timeout": 60.0,
        # Celery does not redirect stdout and stderr into its log, because attempts print through pipes of their own.
        "worker_redirect_stdouts": False,
        "include": ["worker.node.celery_tasks"],
    }


app = Celery("footplate")
"""The Celery app of a node. worker/app.py configures it, so that an import of this module reads no setting."""
