"""The names of all Redis keys, streams, channels, queues and tasks.

Any entry of Redis may vanish at any moment without loss, because the SQL database or a node's journal has its content.
"""

from __future__ import annotations

from footplate.contract.ids import ClaimId, JobId, NodeId

EVENTS = "fp:events"
"""Stream: batches of events from the nodes' journals, until the service has committed them to SQL and deletes them."""

INBOX = "fp:inbox"
"""List: claims and heartbeats from workers to the control process. Workers repeat each message until it is answered."""
INBOX_LIMIT = 20_000
"""The greatest length of the list INBOX. Older messages are dropped."""

EPOCH = "fp:epoch"
"""String: a mark that the service sets in Redis. If the mark is missing, Redis was emptied, and all Celery messages are
sent again."""

WAKE = "fp:wake"
"""Channel: the jobs that have new events, for the API processes with open sockets. A message also names its sender."""

WAKE_CONTROL = "fp:wake_control"
"""Channel: wakes control, because a job waits for placement. Messages may be lost, because control also polls
the database."""

CONTROL = "fp:control"
"""String that expires: shows that a control process runs. For display only, because a lock in SQL decides who leads."""

TASK = "footplate.attempt"
CANARY_TASK = "footplate.canary"

REPLY_TTL_SECONDS = 120

VISIBILITY_SECONDS = 3600
"""The visibility timeout of the Celery broker: messages that stay unacknowledged for longer are delivered again. It is
equal in all clients, because each client applies its own."""


def broker_url(redis_url: str) -> str:
    """Returns the broker URL for Celery. A URL with redis-py's unix:// becomes one with kombu's redis+socket://."""
    return redis_url.replace("unix://", "redis+socket://", 1)


def reply(claim: ClaimId) -> str:
    """List: messages from control to the supervisor that made this claim, such as the grant and stops."""
    return f"fp:reply:{claim}"


def node_reply(node: NodeId, boot: str) -> str:
    """List: replies from control to a node's heartbeats. A restarted node has another list, by its `boot` id."""
    return f"fp:reply:{node}:{boot}"


def watermark(job: JobId, attempt: int, source: int) -> str:
    """String: the highest event number (`seq`) of a node's journal that is committed to SQL."""
    return f"fp:mark:{job}:{attempt}:{source}"


SERVING_SECONDS = 600
"""The time after which Redis drops a request to a serving session, or an answer that nobody reads."""


def serving_queue(session: JobId) -> str:
    """List: the ids of requests that wait for this serving session."""
    return f"fp:serve:{session}"


def serving_withdrawn(session: JobId) -> str:
    """List: the ids of requests whose clients have disconnected, so that the session stops answering them."""
    return f"fp:serve:{session}:withdrawn"


def serving_request(request: str) -> str:
    """String: the JSON body of one request to a serving session."""
    return f"fp:serve:request:{request}"


def serving_answer(request: str) -> str:
    """List: the chunks of a serving session's answer to one request, in order."""
    return f"fp:serve:answer:{request}"


def queue(node: NodeId) -> str:
    """Returns the name of the Celery queue from which only this node takes tasks."""
    return f"fp.node.{node}"


def canary(node: NodeId, boot: str) -> str:
    """String: the time at which this node last received its own test message (canary) through its Celery queue."""
    return f"fp:canary:{node}:{boot}"
