"""May I run this? Asked until control answers. One claim id per delivery makes asking again harmless."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

import redis
from pydantic import ValidationError

from footplate.contract import keys
from footplate.contract.messages import TO_ATTEMPT, Claim, Denial, Grant
from footplate.contract.repeated_errors import Repeated
from worker.redis_client import AWAY, post

log = logging.getLogger("footplate.worker")

ASK_AGAIN_SECONDS = 1.0


def ask(client: redis.Redis, claim: Claim, give_up: Callable[[], bool]) -> Grant | Denial | None:
    """The answer; None once nobody wants it any more. A Redis that is away is waited for."""
    said = Repeated(log, f"the claim of {claim.job} attempt {claim.attempt}")
    while not give_up():
        try:
            with client.pipeline(transaction=False) as pipeline:
                post(pipeline, claim)
                pipeline.execute()
            if answer := _answer(client, claim):
                return answer
        except AWAY as error:
            said.failed("waits for Redis: %s", error)
            time.sleep(ASK_AGAIN_SECONDS)
    return None


def _answer(client: redis.Redis, claim: Claim) -> Grant | Denial | None:
    key = keys.reply(claim.claim)
    deadline = time.monotonic() + ASK_AGAIN_SECONDS
    while (left := deadline - time.monotonic()) > 0:
        # Redis takes a timeout of 0 for "for ever".
        popped = client.blpop([key], timeout=max(left, 0.01))
        if popped is None:
            return None
        try:
            message = TO_ATTEMPT.validate_json(popped[1])
        except ValidationError as error:
            log.warning("control's answer to claim %s cannot be read: %s", claim.claim, error)
            continue
        if isinstance(message, Grant | Denial) and message.claim == claim.claim:
            return message
    return None
