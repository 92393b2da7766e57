"""Tests a job in two processes, which is watched, killed and paused like a job in one process."""

from __future__ import annotations

import json
import os
import signal

import pytest

from tests.examples.conftest import EXAMPLES, Examples
from tests.support.system import JSON, LONG_TOY, assert_whole

LONG = {
    **LONG_TOY,
    "training": {**LONG_TOY["training"], "max_steps": 60},
    "resources": {"gpus_per_node": 0, "processes_per_node": 2},
}
"""A job in two processes, with dropout, gradient accumulation and loader workers."""


def spec(name: str) -> JSON:
    content: JSON = json.loads((EXAMPLES / "two-processes" / name).read_text())
    return content


@pytest.mark.parametrize("name", ["ddp.json", "fsdp.json"])
@pytest.mark.matrix
def test_two_processes_give_the_loss_curve_of_a_single_process(examples: Examples, name: str) -> None:
    system, two = examples.system, spec(name)
    alone = {"training": {**two["training"], "per_device_train_batch_size": 16}, "resources": {}}
    job, other_job = system.submit(two), system.submit({**two, **alone})
    outcome, expected = examples.ended(job), examples.ended(other_job)

    assert (outcome["state"], expected["state"]) == ("succeeded", "succeeded"), outcome["error"]
    assert system.losses(job) == pytest.approx(system.losses(other_job), rel=1e-4)
    assert len(system.final_weights(job)) == len(system.final_weights(other_job))
    assert_whole(system.events(job))


@pytest.mark.matrix
def test_a_job_of_two_processes_that_is_killed_and_paused_ends_as_if_undisturbed(examples: Examples) -> None:
    system = examples.system
    quiet = system.submit(LONG)
    assert examples.ended(quiet)["state"] == "succeeded"
    gate = system.gate()
    job = system.submit(LONG, callbacks=[gate.at(15, 35)])
    system.until_checkpoint(job, 10)
    system.until_reached(job, gate, 15)

    # The oldest processes come first: both ranks in their order, and then their loader workers.
    os.kill(system.training_pids(job)[1], signal.SIGKILL)
    system.until(lambda: system.job(job)["attempt"] == 2, within=60, what="the second attempt starts", job=job)
    system.until_step(job, 30)
    system.until_reached(job, gate, 35)
    assert system.do(job, "pause").status_code == 202
    paused = system.until_state(job, "paused", "succeeded")
    system.do(job, "resume")
    outcome = examples.ended(job)

    assert (paused["state"], outcome["state"], outcome["attempt"]) == ("paused", "succeeded", 3), outcome["error"]
    assert system.losses(job) == system.losses(quiet)
    assert system.final_weights(job) == system.final_weights(quiet)
    first = system.get(f"/jobs/{job}/attempts")["data"][0]
    assert (first["reason"], first["error"]["rank"]) == ("crashed", 1)
    assert "SIGKILL" in first["error"]["message"]
    assert system.training_pids(job) == []
    assert_whole(system.events(job))


@pytest.mark.soak  # On a new node, DeepSpeed compiles an extension for minutes.
def test_a_killed_zero_2_job_continues_with_the_losses_of_a_ddp_job(examples: Examples) -> None:
    system, zero = examples.system, spec("zero.json")
    slow = {"use": "toy/classification", "args": {"n": 256, "seconds_per_item": 0.02}}
    whole = system.submit({**zero, "resources": {**zero["resources"], "strategy": "ddp"}})
    expected = system.until_settled(whole, within=200)
    job = system.submit({**zero, "data": slow})
    system.until_checkpoint(job, 6, within=2400)
    os.kill(system.training_pids(job)[1], signal.SIGKILL)
    outcome = system.until_settled(job, within=400)

    assert (outcome["state"], expected["state"], outcome["attempt"]) == ("succeeded", "succeeded", 2), outcome["error"]
    assert system.losses(job) == pytest.approx(system.losses(whole), rel=1e-4)
    assert len(system.final_weights(job)) == len(system.final_weights(whole))
    first = system.get(f"/jobs/{job}/attempts")["data"][0]
    assert first["error"]["rank"] == 1
    notes = [event["data"]["message"] for event in system.events(job) if event["kind"] == "note"]
    assert any("extension is being built" in message for message in notes)
    assert_whole(system.events(job))
