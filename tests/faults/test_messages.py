"""Tests messages that are repeated, late or forged."""

from __future__ import annotations

import json
from typing import Any

import pytest
import redis

from footplate.contract import redis_keys
from footplate.contract.ids import ClaimId, Fence, JobId, NodeId, new_claim_id, new_job_id, new_node_id
from footplate.contract.messages import TO_ATTEMPT, AttemptBeat, AttemptReply, Claim, Denial, EventBatch
from tests.support.processes import until
from tests.support.system import JSON, LONG_TOY, System, assert_whole

SHORT_TOY: JSON = {**LONG_TOY, "training": {**LONG_TOY["training"], "max_steps": 30}}


# Without the protection, several attempts may also delete each other's files before any of them has trained.
@pytest.mark.fault(
    5, without="one grant for each attempt", red=r"granted \d+\.0 times|not within 60 s: the job logs step 5"
)
def test_a_message_delivered_a_thousand_times_runs_once(system: System) -> None:
    system.start_service()
    system.start_node(slots=2)
    system.nodes[1].freeze()
    job = system.submit(LONG_TOY)
    system.until_state(job, "starting")
    queue = redis_keys.queue(system.get("/nodes")["data"][0]["id"])
    with redis.Redis.from_url(system.redis.url) as client:
        client.rpush(queue, *[start_message_of(system, client, job)] * 1000)

        system.nodes[1].thaw()
        system.until_step(job, 5)
        system.until(lambda: client.llen(queue) == 0, within=60, what="every message is consumed", job=job)
    outcome = system.until_settled(job)

    grant_count = system.counted("footplate_control_claims_granted_total")
    assert grant_count == 1.0, f"granted {grant_count} times"
    assert (outcome["state"], outcome["attempt"]) == ("succeeded", 1), outcome
    assert_whole(system.events(job))


@pytest.mark.fault(5, without="a claim is checked for its fence and node", red="a forged claim is granted")
def test_late_or_forged_start_messages_start_no_attempt(system: System) -> None:
    system.environment["FOOTPLATE_CLAIM_SECONDS"] = "3"
    system.start()
    node = NodeId(system.get("/nodes")["data"][0]["id"])
    system.nodes[1].freeze()
    job = system.submit(SHORT_TOY)
    with redis.Redis.from_url(system.redis.url) as client:
        late = start_message_of(system, client, job)
        claims_that_are_forged_are_denied(client, JobId(job), node)

        # The node stays frozen until its attempt is given up, so that it receives its messages too late.
        system.until(
            lambda: system.get("/nodes")["data"][0]["state"] == "lost", within=30, what="the node is lost", job=job
        )
        system.until_state(job, "queued")
        system.nodes[1].thaw()
        system.until_step(job, 2)
        messages_with_a_forged_claim_are_refused(client, JobId(job), system.job(job)["attempt"])
        outcome = system.until_settled(job)
        client.rpush(redis_keys.queue(node), *[late] * 100)
        system.until(
            lambda: client.llen(redis_keys.queue(node)) == 0,
            within=60,
            what="the late start messages are consumed",
            job=job,
        )

    assert outcome["state"] == "succeeded", outcome
    events = system.events(job)
    assert_whole(events)
    runs = [event["attempt"] for event in events if event["kind"] == "state" and event["data"]["state"] == "running"]
    assert runs == [outcome["attempt"]] != [1], f"it ran as {runs}"
    assert "forged" not in json.dumps(events)


def start_message_of(system: System, client: Any, job: str) -> bytes:
    """Returns the start message of this job from the queue of its node, which may also have a test message."""
    queue = redis_keys.queue(system.get("/nodes")["data"][0]["id"])

    def message() -> bytes | None:
        return next((raw for raw in client.lrange(queue, 0, -1) if job.encode() in raw), None)

    return until(message, within=20, what="the job's start message was sent")


def claims_that_are_forged_are_denied(client: Any, job: JobId, node: NodeId) -> None:
    real: dict[str, Any] = {"job": job, "attempt": 1, "fence": 1, "node": node, "boot": "forged"}
    for name, forged in {
        "fence": {"fence": 7},
        # Attempt 9 does not exist. On a slow machine attempt 2 may be placed meanwhile.
        "attempt": {"attempt": 9, "fence": 9},
        "node": {"node": new_node_id()},
        "job": {"job": new_job_id()},
    }.items():
        claim = Claim(claim=new_claim_id(), **{**real, **forged})
        client.rpush(redis_keys.INBOX, claim.model_dump_json())
        answer = heard(client, claim.claim)
        assert isinstance(answer, Denial), f"a forged claim is granted: with another {name}, {claim}"
        assert answer.reason


def messages_with_a_forged_claim_are_refused(client: Any, job: JobId, attempt: int) -> None:
    """Sends messages that are right in everything but the claim, which only the process with the grant has."""
    whose = {"job": job, "attempt": attempt, "fence": Fence(attempt), "source": 0}
    stop = {"seq": 1, "kind": "done", "at": "2026-01-01T00:00:00.000Z", "data": {"ending": "failed", "reason": "error"}}
    log = {**stop, "kind": "log", "data": {"forged": 1.0}}
    for number, events in enumerate(([log], [stop], [{**stop, "seq": seq} for seq in range(1, 500)])):
        claim = ClaimId(f"forged_{number}")
        beat = AttemptBeat(claim=claim, number=10**6, **whose)
        batch = EventBatch(claim=claim, events=events, **whose)
        client.rpush(redis_keys.INBOX, beat.model_dump_json())
        client.xadd(redis_keys.EVENTS, {"batch": batch.model_dump_json()})
        for _ in ("the beat", "the events"):
            answer = heard(client, claim)
            assert isinstance(answer, AttemptReply), answer
            assert answer.superseded, f"a message with {claim} is accepted for {job}"


def heard(client: Any, claim: str) -> Any:
    item = client.blpop([redis_keys.reply(ClaimId(claim))], timeout=60)
    assert item is not None, f"no answer to {claim}"
    return TO_ATTEMPT.validate_json(item[1])
