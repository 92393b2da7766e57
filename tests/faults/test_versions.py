"""Nodes and messages of the version before and the version after this one: served, and turned away with a reason."""

from __future__ import annotations

import json
import os
from typing import Any

import pytest
import redis

from contract import keys
from contract.ids import JobId, NodeId, new_claim_id, new_node_id
from contract.messages import PROTOCOL, TO_ATTEMPT, Claim, Denial, NodeBeat
from tests.support.processes import REPOSITORY
from tests.support.system import JSON, LONG_TOY, System, assert_whole

BEFORE, AFTER = PROTOCOL - 1, PROTOCOL + 1
REFUSAL = f"it speaks protocol {AFTER}; this service speaks {BEFORE} and {PROTOCOL}: install its version there"

OF_ANOTHER_VERSION = """
from contract import messages
for each in vars(messages).values():
    if isinstance(each, type) and issubclass(each, messages.Message):
        each.model_fields["protocol"].default = {protocol}
        each.model_rebuild(force=True)
for name, union in (("TO_CONTROL", messages.ToControl), ("TO_ATTEMPT", messages.ToAttempt)):
    setattr(messages, name, messages.TypeAdapter(union))
messages.PROTOCOL = {protocol}
"""


@pytest.mark.fault(20, without="a stranger's protocol is turned away", red=f"protocol {AFTER} is not turned away")
@pytest.mark.fault(20, without="the protocol before is served", red=f"protocol {BEFORE} is turned away")
def test_the_version_before_is_served_and_the_one_after_is_denied_with_a_reason(system: System) -> None:
    system.start_service()
    with redis.Redis.from_url(system.redis.url) as client:
        assert of_another_version(system, client, BEFORE)["refused"] is None, f"protocol {BEFORE} is turned away"
        told = of_another_version(system, client, AFTER)["refused"]
        assert told == REFUSAL, f"protocol {AFTER} is not turned away, but told {told!r}"

        start_node(system, 1, AFTER)
        it_gets_no_work_and_everybody_sees_why(system, client)

    start_node(system, 2, BEFORE)
    job = system.submit(short_toy("older"))
    done = system.until_settled(job)
    assert (done["state"], done["attempt"]) == ("succeeded", 1), done
    assert_whole(system.events(job))


def short_toy(pool: str) -> JSON:
    return {**LONG_TOY, "training": {"max_steps": 10, "logging_steps": 1}, "resources": {"pool": pool}}


def start_node(system: System, number: int, protocol: int) -> None:
    """A real one, whose every message names this protocol."""
    folder = system.processes.folder / f"protocol-{protocol}"
    folder.mkdir()
    path = system.environment.get("PYTHONPATH", os.fspath(REPOSITORY))
    (folder / "sitecustomize.py").write_text(OF_ANOTHER_VERSION.format(protocol=protocol))
    pool = "newer" if protocol == AFTER else "older"
    system.start_node(number, wait=False, PYTHONPATH=f"{folder}{os.pathsep}{path}", FOOTPLATE_POOL=pool)


def of_another_version(system: System, client: Any, protocol: int) -> JSON:
    """A node that knows fields we never heard of, and lacks some that we have; and what users read of it."""
    node = new_node_id()
    beat = NodeBeat(node=node, boot="forged", number=1, name=node, pool="forged", slots=1, protocol=protocol)
    said = {**json.loads(beat.model_dump_json()), "mood": "from another time", "gpus": None}
    for name in ("gpus", "versions", "running", "store_ok"):
        del said[name]
    client.rpush(keys.INBOX, json.dumps(said))

    def listed() -> list[JSON]:
        return [one for one in system.get("/nodes")["data"] if one["id"] == node]

    system.processes.until(listed, within=20, what=f"a node of protocol {protocol} is listed")
    return listed()[0]


def it_gets_no_work_and_everybody_sees_why(system: System, client: Any) -> None:
    def listed() -> list[JSON]:
        return [one for one in system.get("/nodes")["data"] if one["name"] == "node-1"]

    system.processes.until(listed, within=60, what="node 1 says that it is there")
    [node] = listed()
    assert (node["refused"], node["takes_work"]) == (REFUSAL, False), node
    system.nodes[1].until(lambda: REFUSAL in system.nodes[1].output, within=20, what="its own log says it too")

    job = system.submit(short_toy("newer"))
    why = f"node-1 has it, and gets no work: {REFUSAL}"
    system.until(
        lambda: why in (system.job(job)["message"] or ""), within=20, what="the job says why it waits", job=job
    )
    waiting = system.job(job)
    assert (waiting["state"], waiting["reason"]) == ("queued", "no_such_shape"), waiting

    claim = Claim(
        job=JobId(job), attempt=1, fence=1, claim=new_claim_id(), node=NodeId(node["id"]), boot="b", protocol=AFTER
    )  # type: ignore[arg-type]
    client.rpush(keys.INBOX, claim.model_dump_json())
    popped = client.blpop([keys.reply(claim.claim)], timeout=20)
    answer = TO_ATTEMPT.validate_json(popped[1])
    assert isinstance(answer, Denial), answer
    assert answer.reason == REFUSAL
    assert system.do(job, "cancel").status_code == 202
