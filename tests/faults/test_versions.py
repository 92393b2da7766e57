"""Tests nodes and messages of the previous protocol, which are accepted, and of the next, which are refused."""

from __future__ import annotations

import json
from typing import Any

import pytest
import redis

from footplate.contract import redis_keys
from footplate.contract.ids import JobId, NodeId, new_claim_id, new_node_id
from footplate.contract.messages import PROTOCOL, TO_ATTEMPT, Claim, Denial, NodeBeat
from tests.support.system import JSON, LONG_TOY, System, assert_whole
from tests.support.versions import AFTER, BEFORE, start_node_of

REFUSAL = (
    f"it uses protocol {AFTER}, and this service uses {BEFORE} or {PROTOCOL}: install the service's version of "
    "Footplate on the node"
)


@pytest.mark.fault(20, without="a later protocol is refused", red=f"protocol {AFTER} is not turned away")
@pytest.mark.fault(20, without="the previous protocol is served", red=f"protocol {BEFORE} is turned away")
def test_nodes_of_the_previous_protocol_are_served_and_of_the_next_refused(system: System) -> None:
    system.start_service()
    with redis.Redis.from_url(system.redis.url) as client:
        assert node_with_protocol(system, client, BEFORE)["refused"] is None, f"protocol {BEFORE} is turned away"
        report = node_with_protocol(system, client, AFTER)["refused"]
        assert report == REFUSAL, f"protocol {AFTER} is not turned away, but told {report!r}"

        start_node_of(AFTER, system, 1, wait=False, FOOTPLATE_POOL="newer")
        it_gets_no_work_and_everybody_sees_why(system, client)

    start_node_of(BEFORE, system, 2, wait=False, FOOTPLATE_POOL="older")
    job = system.submit(short_toy("older"))
    outcome = system.until_settled(job)
    assert (outcome["state"], outcome["attempt"]) == ("succeeded", 1), outcome
    assert_whole(system.events(job))


def short_toy(pool: str) -> JSON:
    return {**LONG_TOY, "training": {"max_steps": 10, "logging_steps": 1}, "resources": {"pool": pool}}


def node_with_protocol(system: System, client: Any, protocol: int) -> JSON:
    """Sends the heartbeat of a node with an unknown field and without some fields. Returns the node as users see it."""
    node = new_node_id()
    beat = NodeBeat(node=node, boot="forged", number=1, name=node, pool="forged", slots=1, protocol=protocol)
    fields = {**json.loads(beat.model_dump_json()), "mood": "from another time", "gpus": None}
    for name in ("gpus", "versions", "running", "store_ok"):
        del fields[name]
    client.rpush(redis_keys.INBOX, json.dumps(fields))

    def listed() -> list[JSON]:
        return [row for row in system.get("/nodes")["data"] if row["id"] == node]

    system.processes.until(listed, within=20, what=f"a node of protocol {protocol} is listed")
    return listed()[0]


def it_gets_no_work_and_everybody_sees_why(system: System, client: Any) -> None:
    def listed() -> list[JSON]:
        return [row for row in system.get("/nodes")["data"] if row["name"] == "node-1"]

    system.processes.until(listed, within=60, what="node 1 is listed")
    [node] = listed()
    assert (node["refused"], node["takes_work"]) == (REFUSAL, False), node
    system.nodes[1].until(lambda: REFUSAL in system.nodes[1].output, within=20, what="the log of node 1 has the reason")

    job = system.submit(short_toy("newer"))
    system.until(
        lambda: REFUSAL in (system.job(job)["message"] or ""), within=20, what="the job says why it waits", job=job
    )
    waiting = system.job(job)
    assert (waiting["state"], waiting["reason"]) == ("queued", "no_such_shape"), waiting

    claim = Claim(
        job=JobId(job), attempt=1, fence=1, claim=new_claim_id(), node=NodeId(node["id"]), boot="b", protocol=AFTER
    )  # type: ignore[arg-type]
    client.rpush(redis_keys.INBOX, claim.model_dump_json())
    item = client.blpop([redis_keys.reply(claim.claim)], timeout=60)
    assert item is not None, "no answer to the claim"
    answer = TO_ATTEMPT.validate_json(item[1])
    assert isinstance(answer, Denial), answer
    assert answer.reason == REFUSAL
    assert system.do(job, "cancel").status_code == 202
