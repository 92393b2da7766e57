"""The two Celery tasks of a node: an attempt, and the canary, which proves that this node takes messages."""

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
from worker.redis_client import REDIS_ERRORS, connect
from worker.tracing import traces

log = logging.getLogger("footplate.worker")

CANARY_SECONDS = 60


@app.task(name=keys.TASK)  # type: ignore[untyped-decorator]
def attempt(job: str, attempt: int, fence: int) -> None:
    """Claims the attempt, and supervises it to its end if control grants it. Otherwise the message is dropped."""
    node = parent.node()
    if node.places.is_draining():
        log.info("%s attempt %s is not claimed, because this node drains", job, attempt)
        return
    if (why := node.places.why_not_ready()) is not None:
        # Control sends the message again, or places the attempt elsewhere. The job loses no attempt.
        log.info("%s attempt %s is not claimed, because this node is not ready: %s", job, attempt, why)
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
            rendezvous=address_text(claimed),
        )
        answer = ask(redis_client(), claim, give_up=node.places.is_draining)
        if isinstance(answer, Grant):
            log.info("%s attempt %s is granted to this node", job, attempt)
            reached(Moment.AFTER_GRANT_HEARD)
            spans = traces().of(answer, parent.settings().node_name, since)
            supervise(parent.settings(), node, answer, redis_client(), claimed, spans)
        elif answer is not None:
            log.info("%s attempt %s is denied to this node: %s", job, attempt, answer.reason)


@app.task(name=keys.CANARY_TASK)  # type: ignore[untyped-decorator]
def canary(number: int) -> None:
    """Writes its number to Redis, where the parent reads it."""
    node = parent.node()
    try:
        redis_client().set(keys.canary(node.id, node.boot), number, ex=CANARY_SECONDS)
    except REDIS_ERRORS as error:
        log.info("the canary's return cannot be recorded in Redis: %s", error)


@cache
def redis_client() -> redis.Redis:
    """Returns the pool process's client. It is made after the fork, and used for all attempts."""
    return connect(parent.settings().redis)
