"""Actions of a user on the first day, over real processes. One system serves all tests of a database."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.processes import until
from tests.support.system import SHORT_TOY, System, assert_whole


def test_a_job_goes_from_post_to_done(standing: System) -> None:
    job = standing.submit(SHORT_TOY)
    done = standing.until_settled(job)

    assert (done["state"], done["reason"]) == ("succeeded", "completed"), done
    assert done["progress"]["step"] == done["progress"]["max_steps"] == 20
    assert done["attempt"] == 1
    events = standing.events(job)
    assert_whole(events)
    moves = [e["data"]["state"] for e in events if e["kind"] == "state"]
    assert moves == ["queued", "starting", "running", "succeeded"]
    assert sorted(standing.losses(job)) == list(range(1, 21))
    assert standing.final_weights(job)
    assert standing.training_pids(job) == []


def test_pause_and_resume_twice_each_gives_the_run_that_nobody_touched(standing: System) -> None:
    gate = standing.gate()
    quiet = standing.submit()
    job = standing.submit(callbacks=[gate.at(15)])
    standing.until_reached(job, gate, 15)

    first, again = standing.do(job, "pause"), standing.do(job, "pause")
    paused = standing.until_state(job, "paused")
    assert (first.status_code, again.status_code) == (202, 202)
    assert paused["actions"] == ["resume", "fork", "cancel"]
    assert standing.do(job, "resume").status_code == standing.do(job, "resume").status_code == 202
    done = standing.until_settled(job)

    assert (done["state"], done["attempt"]) == ("succeeded", 2), done
    assert standing.until_settled(quiet)["state"] == "succeeded"
    assert standing.losses(job) == standing.losses(quiet)
    assert standing.final_weights(job) == standing.final_weights(quiet)
    assert_whole(standing.events(job))


def test_a_killed_training_process_is_retried_and_ends_bit_equal(standing: System) -> None:
    gate = standing.gate()
    quiet = standing.submit()
    job = standing.submit(callbacks=[gate.at(25)])
    standing.until_checkpoint(job, 20)
    standing.until_reached(job, gate, 25)

    standing.kill_training(job)
    done = standing.until_settled(job)

    assert (done["state"], done["attempt"]) == ("succeeded", 2), done
    assert standing.until_settled(quiet)["state"] == "succeeded"
    assert standing.losses(job) == standing.losses(quiet)
    assert standing.final_weights(job) == standing.final_weights(quiet)
    first = standing.get(f"/jobs/{job}/attempts")["data"][0]
    assert first["reason"] == "crashed"
    assert "SIGKILL" in first["error"]["message"]
    assert_whole(standing.events(job))


def test_a_running_loop_takes_orders_and_keeps_them_over_a_kill(standing: System) -> None:
    gate = standing.gate()
    job = standing.submit(callbacks=[gate.at(12, 90)])
    standing.until_reached(job, gate, 12)

    answer = standing.do(job, "do", {"save": True, "set": {"learning_rate": 1e-4, "max_steps": 100}})
    assert (answer.status_code, answer.json()["actions"][0]) == (202, "do")
    gate.open(12)

    def orders() -> list[dict[str, Any]]:
        return [event for event in standing.events(job) if event["kind"] == "do"]

    standing.until(lambda: len(orders()) == 2, within=60, what="the loop says what it did", job=job)
    asked, done = orders()
    step = done["step"]
    standing.until_checkpoint(job, step)
    standing.until_reached(job, gate, 90)
    standing.kill_training(job)
    end = standing.until_settled(job)

    assert (asked["data"]["status"], done["data"]["status"], done["data"]["asked"]) == ("asked", "done", asked["no"])
    assert done["data"]["set"]["max_steps"] == {"from": 120, "to": 100}
    assert step in [saved["step"] for saved in standing.get(f"/jobs/{job}/checkpoints")["data"]]
    assert (end["state"], end["attempt"], end["progress"]["step"]) == ("succeeded", 2, 100), end
    rates = {row["step"]: row["learning_rate"] for row in standing.metrics(job) if "loss" in row}
    assert rates[100] == pytest.approx(1e-4 / 100)
    assert rates[step + 1] == pytest.approx(1e-4 * (100 - step) / 100)
    assert rates[step] == pytest.approx(5e-5 * (121 - step) / 120)
    [held] = [event for event in standing.events(job) if event["attempt"] == 2 and event["kind"] == "note"
              and "set" in event["data"]]  # fmt: skip
    assert held["data"]["set"] == {"learning_rate": 1e-4, "max_steps": 100}
    assert_whole(standing.events(job))


def test_a_fork_goes_on_as_its_job_did_and_one_that_takes_the_weights_begins_anew(standing: System) -> None:
    job = standing.submit()
    done = standing.until_settled(job)
    assert (done["state"], done["actions"]) == ("succeeded", ["fork", "delete"]), done
    saved = {row["step"]: row["id"] for row in standing.get(f"/jobs/{job}/checkpoints")["data"]}

    fork = standing.do(job, "fork", {"checkpoint": saved[90]}).json()
    anew = standing.do(
        job, "fork", {"checkpoint": saved[90], "mode": "weights", "patch": {"training": {"max_steps": 2}}}
    ).json()

    assert standing.until_settled(fork["id"])["state"] == "succeeded"
    whole = standing.losses(job)
    assert standing.losses(fork["id"]) == {step: loss for step, loss in whole.items() if step > 90}
    assert standing.final_weights(fork["id"]) == standing.final_weights(job)
    assert_whole(standing.events(fork["id"]))
    assert standing.until_settled(anew["id"])["state"] == "succeeded"
    begun = standing.losses(anew["id"])
    assert list(begun) == [1, 2]
    assert begun[1] < whole[1], "what it had learnt by step 90 it has not forgotten"


def test_a_fork_ends_with_the_best_model_of_its_parent_which_is_deleted_meanwhile(standing: System) -> None:
    """The greatest loss shall be the best: it is that of the first evaluation, and the fork finds no greater one."""
    training = {
        "max_steps": 20, "eval_strategy": "steps", "eval_steps": 5, "save_strategy": "steps", "save_steps": 5,
        "save_total_limit": 1, "load_best_model_at_end": True, "metric_for_best_model": "loss",
        "greater_is_better": True, "learning_rate": 1e-2,
    }  # fmt: skip
    job = standing.submit(
        data={"train": "toy/regression", "eval": "toy/regression"}, model="toy/mlp", training=training
    )
    before = standing.until_settled(job)
    assert (before["state"], before["result"]["best"]["step"]) == ("succeeded", 5), before
    best, folder = standing.final_weights(job), standing.folder / "artifacts" / "jobs" / job

    gate = standing.gate()
    patch = {"training": {"max_steps": 40}, "callbacks": [gate.at(27, 33)]}
    fork = standing.do(job, "fork", {"checkpoint": "latest", "patch": patch}).json()["id"]
    standing.until_reached(fork, gate, 27)
    standing.until_checkpoint(fork, 25)
    assert standing.client.delete(f"/jobs/{job}").status_code == 204
    standing.until(lambda: not folder.exists(), within=60, what="nothing is left of the job before it", job=fork)
    gate.open(27)
    standing.until_reached(fork, gate, 33)
    standing.until_checkpoint(fork, 30)
    standing.kill_training(fork)
    gate.open(33)
    done = standing.until_settled(fork)

    assert (done["state"], done["attempt"], done["result"]["steps"]) == ("succeeded", 2, 40), done
    assert done["result"]["best"] == before["result"]["best"]
    assert standing.final_weights(fork) == best


@pytest.mark.parametrize("mode", ["checkpoint", "graceful", "kill"])
def test_cancel_while_running_stops_it_in_every_mode(standing: System, mode: str) -> None:
    gate = standing.gate()
    job = standing.submit(callbacks=[gate.at(6)])
    standing.until_step(job, 5)
    standing.until_reached(job, gate, 6)

    assert standing.do(job, "cancel", {"mode": mode}).status_code == 202
    assert standing.do(job, "cancel").status_code == 202
    gone = standing.until_settled(job)

    assert gone["state"] == "cancelled", gone
    until(lambda: standing.training_pids(job) == [], within=5, what="every process of the training to be gone")
    saved = [c["step"] for c in standing.get(f"/jobs/{job}/checkpoints")["data"]]
    if mode == "checkpoint":
        assert saved
        assert saved[0] == max(standing.losses(job))
