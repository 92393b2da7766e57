"""A job on two nodes, which are real workers of this machine: as one process would train, whatever happens to one."""

from __future__ import annotations

import io
import os
import re
import signal
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.examples.conftest import EXAMPLES, Examples, zipped
from tests.journey.conftest import standing_on
from tests.support.pages import paste, snippets
from tests.support.processes import at_ease
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
    """Three nodes with a slot each, for stories that leave two of them standing."""
    with standing_on(request, tmp_path_factory, slots=(1, 1, 1), FOOTPLATE_CODE="on") as system:
        yield system


def test_a_job_on_two_nodes_loses_one_goes_on_with_a_third_and_is_paused_as_one(system: System) -> None:
    more_than_there_are(system)
    gate = system.gate()
    job = system.submit(TOGETHER, callbacks=[gate.at(15, 45, 120)])
    other_job = system.submit(ALONE)
    system.until_checkpoint(job, 10, within=60)
    system.until_reached(job, gate, 15)
    first = system.job(job)["nodes"]

    # The second one: the first keeps the place where they meet, and its death is noticed in another way.
    lost = int(first[1].removeprefix("node-"))
    system.nodes[lost].signal(signal.SIGKILL)
    system.until(lambda: system.job(job)["attempt"] == 2, within=60, what="it is tried again", job=job)
    system.until_reached(job, gate, 45)
    assert system.do(job, "do", {"save": True}).status_code == 202
    gate.open(45)
    system.until(lambda: the_save(system, job), within=30, what="it has saved as it was asked to", job=job)
    system.until_reached(job, gate, 120)
    assert system.do(job, "pause").status_code == 202
    paused = system.until_state(job, "paused", "succeeded")
    system.do(job, "resume")
    done, expected = (system.until_settled(job_id) for job_id in (job, other_job))

    assert (paused["state"], done["state"], done["attempt"]) == ("paused", "succeeded", 3), done["error"]
    assert expected["state"] == "succeeded", expected["error"]
    assert system.losses(job) == pytest.approx(system.losses(other_job), rel=1e-4)
    lost_one, second, third = system.get(f"/jobs/{job}/attempts")["data"]
    assert lost_one["reason"] == "node_lost"
    assert f"no word from node-{lost}" in lost_one["error"]["message"]
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


def test_the_tutorial_about_two_nodes_trains_on_two(system: System, tmp_path: Path) -> None:
    printed = paste(snippets("tutorials/two-nodes.md"), tmp_path, system.url)

    assert "succeeded (completed)" in printed
    job = re.findall(r"job_[0-9a-f]{32}", printed)[0]
    # Another test has killed a node. The first attempt may have been placed there before anybody noticed.
    assert len(system.get(f"/jobs/{job}/attempts")["data"][-1]["nodes"]) == 2


def the_save(system: System, job: str) -> list[JSON]:
    return [event for event in system.events(job) if event["kind"] == "do" and event["data"].get("status") == "done"]


def more_than_there_are(system: System) -> None:
    """A job for four nodes where there are three: it is taken, waits, and says for what."""
    asked = {**TOGETHER, "resources": {"nodes": 4}}
    why = "waits for 4 nodes with 1 slot each in pool 'default': 3 that take work fit"
    would = system.client.post("/jobs/validate", json=asked).json()["placement"]
    assert (would["waits"], would["message"]) == (True, why)
    job = system.submit(asked)
    system.until(lambda: system.job(job)["reason"] == "no_such_shape", within=20, what="it is looked at", job=job)
    assert (system.job(job)["state"], system.job(job)["message"]) == ("queued", why)
    assert system.do(job, "cancel").status_code == 202


@pytest.mark.matrix
def test_a_model_in_pieces_on_two_nodes_makes_the_curve_of_a_whole_one(system: System) -> None:
    examples = Examples(system)
    cut = examples.spec("two-nodes/job.json")
    alone = {"training": {**cut["training"], "per_device_train_batch_size": 16}, "resources": {}}
    job = system.submit(cut)
    done = examples.ended(job)
    other_job = system.submit({**cut, **alone})
    expected = examples.ended(other_job)

    assert (done["state"], done["attempt"], expected["state"]) == ("succeeded", 1, "succeeded"), done["error"]
    assert system.losses(job) == pytest.approx(system.losses(other_job), rel=1e-4)
    assert done["metrics"]["eval_accuracy"] == expected["metrics"]["eval_accuracy"]
    assert len(system.final_weights(job)) == len(system.final_weights(other_job))
    assert_whole(system.events(job))


@pytest.mark.matrix
def test_a_loop_on_two_nodes_that_is_killed_and_paused_ends_as_if_undisturbed(
    system: System,
) -> None:
    examples = Examples(system)
    spec = examples.with_code("own-loop/job.json", resources={"nodes": 2})
    quiet = system.submit({**spec, "loop": {"use": "my_code:main", "args": {"epochs": 12}}})
    assert examples.ended(quiet)["state"] == "succeeded"
    gates = system.processes.folder / "gates"
    gates.mkdir()
    held = {"use": "held:main", "args": {"epochs": 12, "gates": str(gates), "steps": [4, 6]}}
    job = system.submit({**spec, "loop": held, "code": {"bundle": examples.upload(with_gates())}})
    system.until((gates / "4.1").exists, within=at_ease(60), what="it is held at its fourth step", job=job)
    system.until_checkpoint(job, 2, within=at_ease(60))
    os.kill(system.training_pids(job)[1], signal.SIGKILL)
    system.until((gates / "6.1").exists, within=at_ease(60), what="the next attempt is held, too", job=job)
    assert system.do(job, "pause").status_code == 202
    paused = system.until_state(job, "paused", "succeeded", within=at_ease(60))
    system.do(job, "resume")
    done = examples.ended(job)

    assert (paused["state"], done["state"], done["attempt"]) == ("paused", "succeeded", 3), done["error"]
    assert system.losses(job) == system.losses(quiet)
    assert sorted(system.losses(job)) == list(range(1, 13))
    first = system.get(f"/jobs/{job}/attempts")["data"][0]
    assert "of 2: the training process was killed (SIGKILL)" in first["error"]["message"]
    events = system.events(job)
    assert_whole(events)
    assert {event["rank"] for event in events if event["kind"] not in ("line", "system")} == {0}
    assert {"model.pt", "spec.json", "metrics.json"} <= examples.outputs(job).keys()


HELD = """
import time
from pathlib import Path

import my_code


def main(job, gates, steps, **args):
    def held(values, *, step, epoch):
        log(values, step=step, epoch=epoch)
        gate = Path(gates, f"{step}.{job.accelerator.process_index}")
        if step in steps and not gate.exists():
            gate.touch()
            while not job.should_stop:
                time.sleep(0.05)

    log, job.log = job.log, held
    return my_code.main(job, **args)
"""
"""A loop that waits at each of these steps once, until it is killed or told to stop, whatever the time."""


def with_gates() -> bytes:
    packed = io.BytesIO(zipped(EXAMPLES / "own-loop"))
    with zipfile.ZipFile(packed, "a") as archive:
        archive.writestr("held.py", HELD)
    return packed.getvalue()


@pytest.mark.matrix
def test_a_script_on_two_nodes_runs_as_it_is_and_the_one_that_dies_is_the_reason(system: System) -> None:
    script = {"script": "train.py", "argv": ["--steps", "30", "--fail-at", "25"]}
    examples = Examples(system)
    spec = examples.with_code("own-loop/script.json", loop=script, resources={"nodes": 2})
    job = system.submit({**spec, "retry": {"on": ["crashed"]}})
    done = examples.ended(job)

    assert (done["state"], done["attempt"]) == ("succeeded", 2), done["error"]
    first = system.get(f"/jobs/{job}/attempts")["data"][0]
    assert "rank 1 of 2: training called sys.exit(3)" in first["error"]["message"]
    said = [str(event["data"]) for event in system.events(job) if event["kind"] == "line"]
    # What Accelerate prints it prints on each node.
    assert sum("continues at step 20" in line for line in said) == 2
    assert any("done" in line for line in said)


@pytest.mark.soak  # DeepSpeed compiles for minutes, on each node
def test_zero_2_on_two_nodes_continues_after_a_kill_with_the_curve_of_a_whole_model(system: System) -> None:
    examples = Examples(system)
    zero = examples.spec("two-processes/zero.json")
    shared = {"nodes": 2, "gpus_per_node": 0}
    whole = system.submit({**zero, "resources": {**shared, "strategy": "ddp"}})
    expected = examples.ended(whole)
    slow = {"use": "toy/classification", "args": {"n": 256, "seconds_per_item": 0.02}}
    job = system.submit({**zero, "data": slow, "resources": {**shared, "strategy": zero["resources"]["strategy"]}})
    system.until_checkpoint(job, 6, within=2400)
    os.kill(system.training_pids(job)[1], signal.SIGKILL)
    done = system.until_settled(job, within=at_ease(400))

    assert (done["state"], expected["state"], done["attempt"]) == ("succeeded", "succeeded", 2), done["error"]
    assert system.losses(job) == pytest.approx(system.losses(whole), rel=1e-4)
    assert len(system.final_weights(job)) == len(system.final_weights(whole))
    assert_whole(system.events(job))
