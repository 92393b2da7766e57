"""The one task: it lives as long as its attempt. And the canary, which proves that this node takes work."""

from __future__ import annotations

import logging
import time
from functools import cache

import redis

from footplate.contract import keys
from footplate.contract.crash_points import Moment, reached
from footplate.contract.ids import Fence, JobId, new_claim_id
from footplate.contract.messages import Claim, Grant
from worker.attempt.claim import ask
from worker.attempt.rendezvous import address_text, bound_socket, own_address
from worker.attempt.supervise import supervise
from worker.celery_app import app
from worker.node import parent
from worker.redis_client import AWAY, connect
from worker.tracing import traces

log = logging.getLogger("footplate.worker")

CANARY_SECONDS = 60


@app.task(name=keys.TASK)  # type: ignore[untyped-decorator]
def attempt(job: str, attempt: int, fence: int) -> None:
    """Asks whether this attempt is ours; if it is, stays with it to its end. Everything else drops the message."""
    node = parent.node()
    if node.places.is_draining():
        log.info("%s attempt %s is left to others: this node is draining", job, attempt)
        return
    if (why := node.places.why_not_ready()) is not None:
        # It rings again, until somebody claims it or it is placed elsewhere. Neither costs the job an attempt.
        log.info("%s attempt %s is not begun: %s", job, attempt, why)
        return
    since = time.time_ns()
    with bound_socket(own_address(parent.settings())) as claimed:
        claim = Claim(
            job=JobId(job),
            attempt=attempt,
            fence=Fence(fence),
            claim=new_claim_id(),
            node=node.id,
            boot=node.boot,
            meets_at=address_text(claimed),
        )
        answer = ask(redis_client(), claim, give_up=node.places.is_draining)
        if isinstance(answer, Grant):
            log.info("%s attempt %s is ours", job, attempt)
            reached(Moment.AFTER_GRANT_HEARD)
            spans = traces().of(answer, parent.settings().node_name, since)
            supervise(parent.settings(), node, answer, redis_client(), claimed, spans)
        elif answer is not None:
            log.info("%s attempt %s is not ours: %s", job, attempt, answer.reason)


@app.task(name=keys.CANARY_TASK)  # type: ignore[untyped-decorator]
def canary(number: int) -> None:
    """Consumed: says so where the parent looks."""
    node = parent.node()
    try:
        redis_client().set(keys.canary(node.id, node.boot), number, ex=CANARY_SECONDS)
    except AWAY as error:
        log.info("a canary came back and could not say so: %s", error)


@cache
def redis_client() -> redis.Redis:
    """One per pool process: made there, after the fork, and kept from attempt to attempt."""
    return connect(parent.settings().redis)
