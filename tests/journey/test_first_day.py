"""Tests the actions of a user on the first day, with real processes. Tests of one database share a system.

Each promise also has a test at a lower layer: stops and resumes in tests/faults/test_workers.py and tests/examples,
older checkpoints in tests/conformance/test_rolling_back.py, and forks in tests/runtime/test_starting.py.
"""

from __future__ import annotations

import pytest

from tests.support.system import LONG_TOY, System, assert_whole

pytestmark = pytest.mark.matrix
SHORTER = {**LONG_TOY, "training": {**LONG_TOY["training"], "max_steps": 30}}


def test_a_repeated_pause_and_resume_give_the_losses_of_an_undisturbed_run(standing: System) -> None:
    gate = standing.gate()
    quiet = standing.submit()
    job = standing.submit(callbacks=[gate.at(15)])
    standing.until_reached(job, gate, 15)

    first, again = standing.do(job, "pause"), standing.do(job, "pause")
    paused = standing.until_state(job, "paused")
    assert (first.status_code, again.status_code) == (202, 202)
    assert paused["actions"] == ["resume", "fork", "cancel"]
    assert standing.do(job, "resume").status_code == standing.do(job, "resume").status_code == 202
    final_job = standing.until_settled(job)

    assert (final_job["state"], final_job["attempt"]) == ("succeeded", 2), final_job
    assert standing.until_settled(quiet)["state"] == "succeeded"
    assert standing.losses(job) == standing.losses(quiet)
    assert standing.final_weights(job) == standing.final_weights(quiet)
    assert_whole(standing.events(job))


def test_a_job_resumed_from_an_older_checkpoint_undoes_a_wrong_learning_rate(standing: System) -> None:
    quiet, gate = standing.submit(SHORTER), standing.gate()
    job = standing.submit({**SHORTER, "callbacks": [gate.at(12, 25)]})
    standing.until_reached(job, gate, 12)
    assert standing.do(job, "do", {"set": {"learning_rate": 10.0}}).status_code == 202
    gate.open(12)
    standing.until_reached(job, gate, 25)
    assert standing.do(job, "pause").status_code == 202
    standing.until_state(job, "paused")
    standing.until_settled(quiet)
    assert standing.losses(job)[25] != standing.losses(quiet)[25]
    checkpoint_ids = {row["step"]: row["id"] for row in standing.get(f"/jobs/{job}/checkpoints")["data"]}

    assert standing.do(job, "resume", {"checkpoint": checkpoint_ids[10]}).status_code == 202
    assert standing.until_settled(job)["state"] == "succeeded"

    assert standing.losses(job) == standing.losses(quiet)
    assert curve(standing, job) == curve(standing, quiet)
    assert standing.final_weights(job) == standing.final_weights(quiet)
    assert_whole(standing.events(job))


def curve(system: System, job: str) -> tuple[list[int], list[float]]:
    [loss] = system.get(f"/jobs/{job}/metrics/series", names="loss")["data"]
    return loss["x"], loss["y"]


def test_a_fork_continues_its_source_and_a_fork_of_weights_starts_at_step_0(standing: System) -> None:
    job = standing.submit()
    final_job = standing.until_settled(job)
    assert (final_job["state"], final_job["actions"]) == ("succeeded", ["fork", "delete"]), final_job
    checkpoint_ids = {row["step"]: row["id"] for row in standing.get(f"/jobs/{job}/checkpoints")["data"]}

    fork = standing.do(job, "fork", {"checkpoint": checkpoint_ids[90]}).json()
    anew = standing.do(
        job, "fork", {"checkpoint": checkpoint_ids[90], "mode": "weights", "patch": {"training": {"max_steps": 2}}}
    ).json()

    assert standing.until_settled(fork["id"])["state"] == "succeeded"
    whole = standing.losses(job)
    assert standing.losses(fork["id"]) == {step: loss for step, loss in whole.items() if step > 90}
    assert standing.final_weights(fork["id"]) == standing.final_weights(job)
    assert_whole(standing.events(fork["id"]))
    assert standing.until_settled(anew["id"])["state"] == "succeeded"
    begun = standing.losses(anew["id"])
    assert list(begun) == [1, 2]
    assert begun[1] < whole[1], "the fork must begin with the weights of step 90"
