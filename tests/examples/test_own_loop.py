"""A loop of a user's own: watched, paused, killed and continued; and a script that knows nothing of us."""

from __future__ import annotations

from tests.examples.conftest import Examples
from tests.support.system import assert_whole

SLOW = {"use": "my_code:main", "args": {"epochs": 12, "pause": 0.03}}


def test_an_own_loop_is_followed_killed_paused_and_ends_as_if_nothing_had_been(examples: Examples) -> None:
    system = examples.system
    spec = examples.with_code("own-loop/job.json", loop=SLOW)
    quiet, job = system.submit(spec), system.submit(spec)
    system.until_checkpoint(job, 2)
    system.kill_training(job)
    system.until(lambda: system.job(job)["attempt"] == 2, within=60, what="it is tried again", job=job)
    system.until_step(job, 5)
    assert system.do(job, "pause").status_code == 202
    paused = system.until_state(job, "paused", "succeeded")
    system.do(job, "resume")
    done = examples.ended(job)

    assert paused["state"] == "paused", paused
    assert done["state"] == examples.ended(quiet)["state"] == "succeeded", done
    assert system.losses(job) == system.losses(quiet)
    assert sorted(system.losses(job)) == list(range(1, 13))
    assert done["result"]["returned"]["last_loss"] == system.losses(job)[12]
    assert done["metrics"]["eval_loss"] < 0.5
    assert done["progress"]["step"] == 12
    assert {"model.pt", "spec.json", "metrics.json"} <= examples.outputs(job).keys()
    assert {one["status"] for one in system.get(f"/jobs/{job}/checkpoints")["data"]} >= {"committed"}
    assert_whole(system.events(job))


def test_a_script_runs_as_it_is_and_continues_where_its_own_code_does(examples: Examples) -> None:
    script = {"script": "train.py", "argv": ["--steps", "30", "--fail-at", "25"]}
    spec = examples.with_code("own-loop/script.json", loop=script)
    job = examples.system.submit({**spec, "retry": {"on": ["crashed"]}})
    done = examples.ended(job)

    assert (done["state"], done["attempt"]) == ("succeeded", 2), done["error"]
    said = [str(one["data"]) for one in examples.system.events(job) if one["kind"] == "line"]
    assert any("continues at step 20" in line for line in said)
    assert any("done" in line for line in said)
