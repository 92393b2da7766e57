"""The two Celery tasks of a node: an attempt, and the canary, which proves that this node takes messages."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from functools import cache

import redis
from pydantic import ValidationError

from footplate.contract import redis_keys
from footplate.contract.crash_points import Moment, reached
from footplate.contract.ids import Fence, JobId, new_claim_id
from footplate.contract.messages import TO_ATTEMPT, Claim, Denial, Grant
from footplate.contract.repeated_errors import ErrorLog
from worker.attempt.rendezvous import address_text, bound_socket, own_address
from worker.attempt.supervise import supervise
from worker.celery_app import app
from worker.node import parent
from worker.node.canary import no_restart
from worker.redis_client import REDIS_ERRORS, connect, post
from worker.tracing import traces

log = logging.getLogger("footplate.worker")

CANARY_SECONDS = 60
CLAIM_RETRY_SECONDS = 1.0


@app.task(name=redis_keys.TASK)  # type: ignore[untyped-decorator]
def attempt(job: str, attempt: int, fence: int) -> None:
    """Claims an attempt. If control grants the claim, supervises the attempt to its end."""
    node = parent.node()
    if node.folder.is_draining():
        log.info("%s attempt %s is not claimed, because this node drains", job, attempt)
        return
    if (why := node.folder.why_not_ready()) is not None:
        # Control sends the message again, or places the job on another node. The job uses up no retry.
        log.info("%s attempt %s is not claimed, because this node is not ready: %s", job, attempt, why)
        return
    since = time.time_ns()
    with no_restart(node), bound_socket(own_address(parent.settings())) as claim_socket:
        claim = Claim(
            job=JobId(job),
            attempt=attempt,
            fence=Fence(fence),
            claim=new_claim_id(),
            node=node.id,
            boot=node.boot,
            rendezvous=address_text(claim_socket),
        )
        answer = request_grant(redis_client(), claim, give_up=node.folder.is_draining)
        if isinstance(answer, Grant):
            log.info("%s attempt %s is granted to this node", job, attempt)
            reached(Moment.AFTER_GRANT_RECEIVED)
            spans = traces().of(answer, parent.settings().node_name, since)
            supervise(parent.settings(), node, answer, redis_client(), claim_socket, spans)
        elif answer is not None:
            log.info("%s attempt %s is denied to this node: %s", job, attempt, answer.reason)


def request_grant(client: redis.Redis, claim: Claim, give_up: Callable[[], bool]) -> Grant | Denial | None:
    """Returns control's answer to a claim, or None if the caller gives up. Repeats the claim until control answers.

    A claim id is new for each Celery message, so that a repeated request is the same claim.
    """
    failures = ErrorLog(log, f"the claim of {claim.job} attempt {claim.attempt}")
    while not give_up():
        try:
            with client.pipeline(transaction=False) as pipeline:
                post(pipeline, claim)
                pipeline.execute()
            if answer := _answer(client, claim):
                return answer
        except REDIS_ERRORS as error:
            failures.failed("waits for Redis: %s", error)
            time.sleep(CLAIM_RETRY_SECONDS)
    return None


def _answer(client: redis.Redis, claim: Claim) -> Grant | Denial | None:
    key = redis_keys.reply(claim.claim)
    deadline = time.monotonic() + CLAIM_RETRY_SECONDS
    while (seconds_left := deadline - time.monotonic()) > 0:
        # Redis waits for ever if the timeout is 0.
        entry = client.blpop([key], timeout=max(seconds_left, 0.01))
        if entry is None:
            return None
        try:
            message = TO_ATTEMPT.validate_json(entry[1])
        except ValidationError as error:
            log.warning("cannot parse control's answer to claim %s: %s", claim.claim, error)
            continue
        if isinstance(message, Grant | Denial) and message.claim == claim.claim:
            return message
    return None


@app.task(name=redis_keys.CANARY_TASK)  # type: ignore[untyped-decorator]
def canary(number: int) -> None:
    """Writes the canary's number to Redis, where the node's heartbeat thread reads it."""
    node = parent.node()
    try:
        redis_client().set(redis_keys.canary(node.id, node.boot), number, ex=CANARY_SECONDS)
    except REDIS_ERRORS as error:
        log.info("this node received its own test message, but cannot record that in Redis: %s", error)


@cache
def redis_client() -> redis.Redis:
    """Returns the pool process's client. It is made after the fork, and used for all attempts."""
    return connect(parent.settings().redis)
