"""The names of all Redis keys, streams, channels, queues and tasks.

Redis is a pipe. Each of its entries may vanish at any moment without loss, because SQL or a journal still has it.
"""

from __future__ import annotations

from footplate.contract.ids import ClaimId, JobId, NodeId

EVENTS = "fp:events"
"""Stream: journal lines on their way to SQL, many per entry. Entries are deleted after the commit, never trimmed."""

INBOX = "fp:inbox"
"""List: claims and heartbeats from workers to control. Its length is limited, because workers repeat each message until
it is answered."""
INBOX_LIMIT = 20_000

EPOCH = "fp:epoch"
"""String: this Redis's sentinel. If it is missing, Redis restarted empty, and all Celery messages are sent again."""

WAKE = "fp:wake"
"""Channel: the sender and the jobs that have new events. API processes with open sockets listen."""

WAKE_CONTROL = "fp:wake_control"
"""Channel: a job waits for placement. Messages may be lost, because control polls too."""

CONTROL = "fp:control"
"""String that expires: a control process is running. For display only, because the lock in SQL decides."""

TASK = "footplate.attempt"
CANARY_TASK = "footplate.canary"

REPLY_TTL_SECONDS = 120

VISIBILITY_SECONDS = 3600
"""The visibility timeout, equal in every client of this broker. kombu redelivers what any client counts as
unacknowledged for longer."""


def broker_url(redis_url: str) -> str:
    """Returns the URL as Celery spells it: kombu writes redis+socket:// for redis-py's unix://."""
    return redis_url.replace("unix://", "redis+socket://", 1)


def reply(claim: ClaimId) -> str:
    """List: replies from control to the supervisor that made this claim (grant, denial, answers to beats, stops)."""
    return f"fp:reply:{claim}"


def node_reply(node: NodeId, boot: str) -> str:
    """List: replies from control to one start of a node."""
    return f"fp:reply:{node}:{boot}"


def watermark(job: JobId, attempt: int, source: int) -> str:
    """String: the highest seq of this journal that SQL has committed."""
    return f"fp:mark:{job}:{attempt}:{source}"


SERVING_SECONDS = 600
"""The time after which Redis drops a request to a serving session, or an answer that nobody reads."""


def serving_queue(session: JobId) -> str:
    """List: ids of requests that wait for this serving session. It ends with the last of them."""
    return f"fp:serve:{session}"


def serving_withdrawn(session: JobId) -> str:
    """List: ids of requests whose clients have gone while this session answers them."""
    return f"fp:serve:{session}:withdrawn"


def serving_request(request: str) -> str:
    """String: the body of one request to a serving session."""
    return f"fp:serve:request:{request}"


def serving_answer(request: str) -> str:
    """List: the pieces of the answer to one request."""
    return f"fp:serve:answer:{request}"


def queue(node: NodeId) -> str:
    """The Celery queue of one node."""
    return f"fp.node.{node}"


def canary(node: NodeId, boot: str) -> str:
    """String: the time at which this node last consumed a message of its own queue."""
    return f"fp:canary:{node}:{boot}"
