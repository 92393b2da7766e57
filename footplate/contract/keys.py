"""Every Redis key, stream, channel, queue and task name, in one place.

Redis is a pipe: each of these may vanish at any moment and nothing is lost, because SQL or a journal still has it.
"""

from __future__ import annotations

from footplate.contract.ids import ClaimId, JobId, NodeId

EVENTS = "fp:events"
"""Stream: journal lines on their way to SQL, many events an entry. Deleted after the commit, never trimmed."""

INBOX = "fp:inbox"
"""List: claims and heartbeats from workers to control. Capped: each is repeated until it is answered."""
INBOX_LIMIT = 20_000

EPOCH = "fp:epoch"
"""String: this Redis's sentinel. Gone means that Redis restarted empty, and every bell must be rung again."""

WAKE = "fp:wake"
"""Channel: who says so, and the jobs that have new events, for the API processes that hold sockets."""

POKE = "fp:poke"
"""Channel: something is waiting to be placed. Best effort; control polls besides."""

CONTROL = "fp:control"
"""String that expires: a control process works. For display only; the lock in SQL decides."""

TASK = "footplate.attempt"
CANARY_TASK = "footplate.canary"

REPLY_TTL_SECONDS = 120

VISIBILITY_SECONDS = 3600
"""The same in every client of this broker: kombu gives back what any of them thinks unacknowledged for longer."""


def broker_url(redis_url: str) -> str:
    """The same Redis as Celery spells it: what redis-py calls unix://, kombu calls redis+socket://."""
    return redis_url.replace("unix://", "redis+socket://", 1)


def reply(claim: ClaimId) -> str:
    """List: what control tells the supervisor that made this claim: a grant, a denial, answers to beats, stops."""
    return f"fp:reply:{claim}"


def node_reply(node: NodeId, boot: str) -> str:
    """List: what control tells one start of a node."""
    return f"fp:reply:{node}:{boot}"


def watermark(job: JobId, attempt: int, source: int) -> str:
    """String: the highest seq of this journal that SQL has committed."""
    return f"fp:mark:{job}:{attempt}:{source}"


def queue(node: NodeId) -> str:
    """The Celery queue of one node: its doorbell."""
    return f"fp.node.{node}"


def canary(node: NodeId, boot: str) -> str:
    """String: when this node last consumed a message of its own queue."""
    return f"fp:canary:{node}:{boot}"
