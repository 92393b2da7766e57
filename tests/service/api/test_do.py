"""Tests POST /jobs/{id}/do, which sends a live command to a running loop and stores the command."""

from __future__ import annotations

import json
from typing import Any

import pytest

from footplate.contract.ids import JobId
from footplate.contract.lifecycle import JobState
from footplate.contract.messages import Command
from service.store import commands, jobs
from tests.service.api.conftest import Api, each_case

TRAINS = {
    "data": {"train": "toy/regression", "eval": "toy/regression"},
    "training": {"max_steps": 100, "eval_strategy": "epoch", "save_steps": 10},
}
SETTABLE = "there is: learning_rate, max_steps, logging_steps, eval_steps, save_steps"
RATE = "must be a number of 0 or more, or an object of such numbers by the optimizers' ids"


async def running(api: Api, **spec: Any) -> JobId:
    job = await api.submit(**{**TRAINS, **spec})
    await api.db.write(lambda conn: jobs.record(conn, job, state=JobState.RUNNING, attempt=1))
    return job


async def do_events(api: Api, job: JobId) -> list[dict[str, Any]]:
    page = (await api.client.get(f"/jobs/{job}/events?kinds=do")).json()
    return [event["data"] for event in page["data"]]


@pytest.mark.own_statement
async def test_a_command_is_stored_and_answered_with_the_job(both: Api) -> None:
    job = await running(both)

    answer = await both.client.post(f"/jobs/{job}/do", json={"save": True, "set": {"learning_rate": 1e-5}})

    assert answer.status_code == 202, answer.text
    assert answer.json()["actions"][0] == "do"
    [report] = await do_events(both, job)
    assert report == {
        "status": "asked", "message": "requested: save, learning_rate 1e-05", "save": True,
        "set": {"learning_rate": 1e-5},
    }  # fmt: skip
    [command] = await both.db.read(lambda conn: commands.undone(conn, job))
    assert command == Command(no=answer.json()["last_no"], save=True, set=report["set"])


async def test_a_number_in_a_command_gets_the_type_of_its_argument(api: Api) -> None:
    job = await running(api)

    await api.client.post(
        f"/jobs/{job}/do",
        content='{"set": {"max_steps": 5e2, "learning_rate": 1}}',
        headers={"Content-Type": "application/json"},
    )

    [command] = await api.db.read(lambda conn: commands.undone(conn, job))
    assert repr(command.set) == "{'learning_rate': 1.0, 'max_steps': 500}"


async def test_a_command_repeated_with_its_idempotency_key_is_stored_once(both: Api) -> None:
    job, headers = await running(both), {"Idempotency-Key": "save"}

    first, again = [await both.client.post(f"/jobs/{job}/do", json={"save": True}, headers=headers) for _ in "12"]
    other = await both.client.post(f"/jobs/{job}/do", json={"evaluate": True}, headers=headers)

    assert (first.status_code, again.status_code, again.json()) == (202, 202, first.json())
    assert (other.status_code, other.json()["code"]) == (422, "idempotency_key_reused")
    assert len(await do_events(both, job)) == 1


@each_case(("state", "hint"), [
    (JobState.STARTING, "the job starts in a moment: send the command once it runs"),
    (JobState.PAUSED, "resume the job, and send the command once it runs; a resume itself can change max_steps"),
    (JobState.SUCCEEDED, "fork it to train longer, or delete it"),
])  # fmt: skip
async def test_a_command_without_a_running_loop_is_refused_with_what_would_work(
    api: Api, state: JobState, hint: str | None
) -> None:
    job = await api.submit()
    await api.db.write(lambda conn: jobs.record(conn, job, state=state))

    answer = await api.client.post(f"/jobs/{job}/do", json={"save": True})

    assert (answer.status_code, answer.json()["state"], answer.json().get("hint")) == (409, state, hint)
    assert "do" not in answer.json()["allowed"]
    assert "takes no commands" in answer.json()["detail"]


async def test_a_pause_of_a_succeeded_job_is_refused_with_the_actions_that_work(api: Api) -> None:
    job = await api.submit()
    await api.db.write(lambda conn: jobs.record(conn, job, state=JobState.SUCCEEDED))

    refusal = (await api.client.post(f"/jobs/{job}/pause")).json()

    assert (refusal["code"], refusal["state"], refusal["allowed"]) == ("conflict", "succeeded", ["fork", "delete"])
    assert f"{job} has succeeded" in refusal["detail"]
    assert "fork" in refusal["hint"]


@each_case(("body", "pointer", "detail", "hint"), [
    ({}, "", "the request has no command", 'for example {"save": true} or {"set": {"learning_rate": 1e-5}}'),
    ({"save": "yes"}, "/save", "is a string, true or false is needed", None),
    ({"sav": True}, "/sav", "no field is named 'sav'; there is: save, evaluate, set", "did you mean 'save'?"),
    ({"set": {"learning_rat": 1}}, "/set/learning_rat", f"no field is named 'learning_rat'; {SETTABLE}",
     "did you mean 'learning_rate'?"),
    ({"set": {"learning_rate": "low"}}, "/set/learning_rate", RATE, None),
    ({"set": {"learning_rate": -1}}, "/set/learning_rate", RATE, None),
    ({"set": {"learning_rate": {"main": True}}}, "/set/learning_rate", RATE, None),
    ({"set": {"per_device_train_batch_size": 4}}, "/set/per_device_train_batch_size",
     f"no field is named 'per_device_train_batch_size'; {SETTABLE}", None),
    ({"set": {"max_steps": 40.5}}, "/set/max_steps", "is a number, a whole number is needed", None),
])  # fmt: skip
async def test_a_wrong_command_is_refused_with_its_pointer(
    api: Api, body: Any, pointer: str, detail: str, hint: str | None
) -> None:
    job = await running(api)

    answer = await api.client.post(f"/jobs/{job}/do", json=body)

    assert answer.status_code == 422, answer.text
    [error] = answer.json()["errors"]
    assert (error["pointer"], error["detail"], error.get("hint")) == (pointer, detail, hint)
    assert await do_events(api, job) == []


async def test_all_errors_of_a_command_are_reported_at_once(api: Api) -> None:
    job = await running(api)

    wish = {"set": {"learning_rate": -1, "seed": 1, "logging_steps": -1}}
    answer = await api.client.post(f"/jobs/{job}/do", json=wish)

    pointers = {error["pointer"] for error in answer.json()["errors"]}
    assert pointers == {"/set/learning_rate", "/set/seed", "/set/logging_steps"}


async def test_a_value_that_does_not_fit_the_spec_is_refused_at_its_place(api: Api) -> None:
    training = {"eval_strategy": "steps", "eval_steps": 5, "save_steps": 10, "load_best_model_at_end": True}
    job = await running(api, training={"max_steps": 100, **training})

    answer = await api.client.post(f"/jobs/{job}/do", json={"set": {"eval_steps": 7}})

    assert answer.status_code == 422, answer.text
    [error] = answer.json()["errors"]
    assert (error["pointer"], error["code"]) == ("/set", "disagreement")
    assert all(name in error["detail"] for name in ("save_steps", "eval_steps"))


async def test_learning_rates_by_optimizer_are_passed_to_the_loop(api: Api) -> None:
    job = await running(api)

    await api.client.post(f"/jobs/{job}/do", json={"set": {"learning_rate": {"aux": 1}}})

    [command] = await api.db.read(lambda conn: commands.undone(conn, job))
    assert command.set == {"learning_rate": {"aux": 1.0}}


async def test_a_learning_rate_without_the_name_of_its_optimizer_is_refused(api: Api) -> None:
    job = await running(api, optimizers=[{"id": "main", "params": ["."], "use": "adam"}])

    answer = await api.client.post(f"/jobs/{job}/do", json={"set": {"learning_rate": 1e-4}})

    [error] = answer.json()["errors"]
    assert (error["pointer"], error["code"]) == ("/set/learning_rate", "disagreement")
    assert error["hint"].endswith('{"learning_rate": {"main": 0.0001}}')


async def test_own_loops_and_jobs_without_training_refuse_commands(api: Api) -> None:
    evaluates = await running(api, data={"eval": "toy/regression"}, training={})

    answer = await api.client.post(f"/jobs/{evaluates}/do", json={"save": True, "set": {"max_steps": 5}})

    assert [error["pointer"] for error in answer.json()["errors"]] == ["/save", "/set"]


async def test_a_script_gets_only_the_commands_that_its_trainer_can_do(api: Api) -> None:
    job = await running(api)
    script = {"loop": {"script": "train.py", "argv": []}, "code": {"bundle": "0" * 64}}
    await api.db.write(lambda conn: jobs.record(conn, job, spec=json.dumps(script)))
    wrong = {"seed": 1, "eval_steps": 0, "learning_rate": "fast"}

    refusal = await api.client.post(f"/jobs/{job}/do", json={"save": True, "set": wrong})
    accepted = await api.client.post(f"/jobs/{job}/do", json={"save": True, "set": {"learning_rate": 1e-5}})

    assert sorted(error["pointer"] for error in refusal.json()["errors"]) == [f"/set/{name}" for name in sorted(wrong)]
    assert accepted.status_code == 202, accepted.text


async def test_the_commands_of_a_deleted_job_are_deleted_with_it(api: Api) -> None:
    job = await running(api)
    await api.client.post(f"/jobs/{job}/do", json={"save": True})
    await api.db.write(lambda conn: jobs.record(conn, job, state=JobState.FAILED))

    assert (await api.client.delete(f"/jobs/{job}")).status_code == 204
    assert await api.db.read(lambda conn: commands.of_job(conn, job)) == []
