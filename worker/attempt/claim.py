"""Requests an attempt from control, and repeats the request until control answers.

A claim id is new for each Celery message, so that a repeated request is the same claim.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

import redis
from pydantic import ValidationError

from footplate.contract import keys
from footplate.contract.messages import TO_ATTEMPT, Claim, Denial, Grant
from footplate.contract.repeated_errors import Repeated
from worker.redis_client import REDIS_ERRORS, post

log = logging.getLogger("footplate.worker")

ASK_AGAIN_SECONDS = 1.0


def ask(client: redis.Redis, claim: Claim, give_up: Callable[[], bool]) -> Grant | Denial | None:
    """Returns the answer, or None if the caller gives up. Retries while Redis does not answer."""
    failures = Repeated(log, f"the claim of {claim.job} attempt {claim.attempt}")
    while not give_up():
        try:
            with client.pipeline(transaction=False) as pipeline:
                post(pipeline, claim)
                pipeline.execute()
            if answer := _answer(client, claim):
                return answer
        except REDIS_ERRORS as error:
            failures.failed("waits for Redis: %s", error)
            time.sleep(ASK_AGAIN_SECONDS)
    return None


def _answer(client: redis.Redis, claim: Claim) -> Grant | Denial | None:
    key = keys.reply(claim.claim)
    deadline = time.monotonic() + ASK_AGAIN_SECONDS
    while (left := deadline - time.monotonic()) > 0:
        # Redis waits for ever if the timeout is 0.
        popped = client.blpop([key], timeout=max(left, 0.01))
        if popped is None:
            return None
        try:
            message = TO_ATTEMPT.validate_json(popped[1])
        except ValidationError as error:
            log.warning("cannot parse control's answer to claim %s: %s", claim.claim, error)
            continue
        if isinstance(message, Grant | Denial) and message.claim == claim.claim:
            return message
    return None
