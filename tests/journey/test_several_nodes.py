"""Tests a job on two nodes, which trains like a single process, even if a node is lost."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.journey.conftest import running_on
from tests.support.pages import paste, snippets
from tests.support.system import JSON, System, assert_whole

ALONE: JSON = {
    "model": "toy/mlp",
    "data": {"use": "toy/regression", "args": {"n": 256, "seconds_per_item": 0.004}},
    "training": {
        "max_steps": 200, "per_device_train_batch_size": 16, "logging_steps": 1, "save_strategy": "steps",
        "save_steps": 10, "seed": 7,
    },
}  # fmt: skip
TOGETHER = {**ALONE, "training": {**ALONE["training"], "per_device_train_batch_size": 8}, "resources": {"nodes": 2}}


@pytest.fixture(
    scope="module", params=["sqlite", pytest.param("postgres", marks=[pytest.mark.postgres, pytest.mark.matrix])]
)
def system(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[System]:
    """Yields a system of three nodes with one slot each, for tests that leave at least two nodes running."""
    with running_on(request, tmp_path_factory, slots=(1, 1, 1), FOOTPLATE_CODE="on") as system:
        yield system


def test_a_job_on_two_nodes_survives_a_lost_node_and_a_pause(system: System) -> None:
    a_job_for_too_many_nodes_waits_with_a_reason(system)
    gate = system.gate()
    job = system.submit(TOGETHER, callbacks=[gate.at(15, 45, 120)])
    other_job = system.submit(ALONE)
    system.until_checkpoint(job, 10, within=60)
    system.until_reached(job, gate, 15)
    first = system.job(job)["nodes"]

    # The second node is killed, because the first node has the rendezvous, whose loss is noticed in another way.
    node_number = int(first[1].removeprefix("node-"))
    system.nodes[node_number].signal(signal.SIGKILL)
    system.until(lambda: system.job(job)["attempt"] == 2, within=60, what="the job has a second attempt", job=job)
    system.until_reached(job, gate, 45)
    assert system.do(job, "do", {"save": True}).status_code == 202
    gate.open(45)
    system.until(lambda: the_save(system, job), within=30, what="the requested checkpoint is saved", job=job)
    system.until_reached(job, gate, 120)
    assert system.do(job, "pause").status_code == 202
    paused = system.until_state(job, "paused", "succeeded")
    system.do(job, "resume")
    final_job, expected = (system.until_settled(job_id) for job_id in (job, other_job))

    assert (paused["state"], final_job["state"], final_job["attempt"]) == ("paused", "succeeded", 3), final_job["error"]
    assert expected["state"] == "succeeded", expected["error"]
    assert system.losses(job) == pytest.approx(system.losses(other_job), rel=1e-4)
    lost_one, second, third = system.get(f"/jobs/{job}/attempts")["data"]
    assert lost_one["reason"] == "node_lost"
    assert f"heartbeat from node-{node_number}" in lost_one["error"]["message"]
    for attempt in (second, third):
        assert len(attempt["nodes"]) == 2
        assert first[1] not in [node["name"] for node in attempt["nodes"]]
    events = system.events(job)
    assert_whole(events)
    assert {event["source"] for event in events if event["attempt"] == 2 and event["kind"] == "done"} == {0, 1}
    moves = [event["data"]["state"] for event in events if event["kind"] == "state"]
    again = ["queued", "starting", "running"]
    assert moves == [*again, *again, "stopping", "paused", *again, "succeeded"]
    assert system.training_pids(job) == []


def test_the_tutorial_about_two_nodes_trains_on_two_nodes(system: System, tmp_path: Path) -> None:
    output = paste(snippets("tutorials/two-nodes.md"), tmp_path, system.url)

    assert "succeeded (completed)" in output
    job = re.findall(r"job_[0-9a-f]{32}", output)[0]
    # Another test has killed a node. The first attempt may have been placed there before control noticed its death.
    assert len(system.get(f"/jobs/{job}/attempts")["data"][-1]["nodes"]) == 2


def the_save(system: System, job: str) -> list[JSON]:
    return [event for event in system.events(job) if event["kind"] == "do" and event["data"].get("status") == "done"]


def a_job_for_too_many_nodes_waits_with_a_reason(system: System) -> None:
    """A job for four nodes is accepted in a system of three nodes. Its message names the reason why it waits."""
    spec = {**TOGETHER, "resources": {"nodes": 4}}
    why = "waits for 4 nodes with 1 slot each in pool 'default': there are only 3 such nodes that take work"
    would = system.client.post("/jobs/validate", json=spec).json()["placement"]
    assert (would["waits"], would["message"]) == (True, why)
    job = system.submit(spec)
    system.until(
        lambda: system.job(job)["reason"] == "no_such_shape", within=20, what="the job waits for lack of nodes", job=job
    )
    assert (system.job(job)["state"], system.job(job)["message"]) == ("queued", why)
    assert system.do(job, "cancel").status_code == 202
