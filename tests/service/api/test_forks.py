"""Jobs that start from other jobs' checkpoints: by `resume_from`, and by a fork."""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest

from footplate.contract.arguments import TrainingArguments
from footplate.contract.ids import JobId, new_job_id
from footplate.contract.layout import checkpoint_folder
from footplate.contract.lifecycle import JobState
from footplate.contract.messages import Command
from footplate.contract.resources.jobs import ForkedJob
from service.jobs.fork import NEUTRAL_TRAINING, WHY, merged
from service.store import checkpoints, commands
from tests.service.api.conftest import KEY, SPEC, Api, Serve, each_case
from tests.service.api.test_bundles import zipped
from tests.service.api.test_keys import a_key, bearer

LEARNS = {**SPEC, "training": {"max_steps": 20, "learning_rate": 0.1, "seed": 7}}


async def save_checkpoint(api: Api, job: JobId, step: int, status: str = "committed", *, is_best: bool = False) -> str:
    return (await api.commit(job, step, status=status, is_best=is_best)).id


async def trained(api: Api, **changes: Any) -> JobId:
    """Returns a job that has succeeded, with checkpoints of the steps 10 (the best) and 20."""
    job = await api.submit(**{**LEARNS, **changes})
    await save_checkpoint(api, job, 10, is_best=True)
    await save_checkpoint(api, job, 20)
    await api.end(job)
    return job


async def steps_of(api: Api, job: JobId) -> dict[int, str]:
    rows = (await api.client.get(f"/jobs/{job}/checkpoints")).json()["data"]
    return {row["step"]: row["id"] for row in rows}


async def spec_of(api: Api, job: str) -> Any:
    return (await api.client.get(f"/jobs/{job}/spec")).json()


def first_problem(answer: Any) -> tuple[str, str]:
    assert answer.status_code == 422, answer.text
    return answer.json()["errors"][0]["pointer"], answer.json()["errors"][0]["code"]


@pytest.mark.parametrize(("checkpoint", "step"), [("latest", 20), ("best", 10), (None, 20)])
async def test_a_checkpoint_named_latest_or_best_is_pinned_when_the_job_is_accepted(
    both: Api, checkpoint: str | None, step: int
) -> None:
    job = await trained(both)
    place = {"job": job} if checkpoint is None else {"job": job, "checkpoint": checkpoint}
    valid = await both.client.post("/jobs/validate", json={**LEARNS, "resume_from": place})

    new = await both.submit(**LEARNS, resume_from=place)

    pinned = {"job": job, "checkpoint": (await steps_of(both, job))[step], "path": None, "mode": "full"}
    assert (await spec_of(both, new))["resume_from"] == pinned
    assert valid.json()["spec"]["resume_from"] == pinned
    await save_checkpoint(both, job, 30)
    assert (await spec_of(both, new))["resume_from"] == pinned


async def test_a_missing_checkpoint_is_refused_at_the_field_that_names_it(both: Api) -> None:
    job, bare = await trained(both), await both.submit()
    deleted = await save_checkpoint(both, job, 5, "deleted")
    corrupt = await save_checkpoint(both, job, 6, "corrupt")

    async def refusal(place: Any) -> tuple[str, str]:
        return first_problem(await both.client.post("/jobs", json={**LEARNS, "resume_from": place}))

    assert await refusal({"job": new_job_id()}) == ("/resume_from/job", "unknown_job")
    assert await refusal({"job": bare}) == ("/resume_from/checkpoint", "no_checkpoint")
    assert await refusal({"job": job, "checkpoint": deleted}) == ("/resume_from/checkpoint", "checkpoint_gone")
    assert await refusal({"job": job, "checkpoint": corrupt}) == ("/resume_from/checkpoint", "checkpoint_gone")
    assert await refusal({"job": job, "checkpoint": "ckpt_" + "0" * 32}) == (
        "/resume_from/checkpoint", "unknown_checkpoint",
    )  # fmt: skip
    in_training = {**LEARNS, "training": {**LEARNS["training"], "resume_from_checkpoint": f"{job}/{deleted}"}}  # type: ignore[dict-item]
    answer = await both.client.post("/jobs", json=in_training)
    assert first_problem(answer) == ("/training/resume_from_checkpoint", "checkpoint_gone")
    assert all(name in answer.json()["detail"] for name in (deleted, job, "step 5"))


async def test_a_job_of_another_project_is_answered_like_an_unknown_job(serve: Serve, sqlite_url: str) -> None:
    api = await serve(sqlite_url, api_key=KEY)
    mine, theirs = await a_key(api, "vision"), await a_key(api, "speech")
    there = JobId((await api.client.post("/jobs", json=LEARNS, headers=bearer(theirs))).json()["id"])
    await save_checkpoint(api, there, 10)
    never = new_job_id()

    answers = [
        await api.client.post("/jobs", json={**LEARNS, "resume_from": {"job": job}}, headers=bearer(mine))
        for job in (there, never)
    ]

    error_texts = [
        json.dumps(answer.json()["errors"]).replace(there, "JOB").replace(never, "JOB") for answer in answers
    ]
    assert error_texts[0] == error_texts[1]
    assert first_problem(answers[0]) == ("/resume_from/job", "unknown_job")


async def test_a_spec_that_cannot_continue_a_checkpoint_may_only_take_its_weights(api: Api) -> None:
    job = await trained(api)
    only_model = await trained(api, training={"save_only_model": True})
    other = {**LEARNS, "training": {"seed": 8, "per_device_train_batch_size": 2, "learning_rate": 0.5}}

    refusal = await api.client.post("/jobs", json={**other, "resume_from": {"job": job}})
    nothing_to_go_on = await api.client.post("/jobs", json={**SPEC, "resume_from": {"job": only_model}})
    begins_anew = await api.client.post("/jobs", json={**other, "resume_from": {"job": job, "mode": "weights"}})
    begins_its_data_anew = await api.client.post(
        "/jobs", json={**other, "training": {"seed": 8, "ignore_data_skip": True}, "resume_from": {"job": job}}
    )

    assert [(error["pointer"], error["code"]) for error in refusal.json()["errors"]] == [
        ("/training/seed", "cannot_change")
    ]
    assert f"was 7 in job {job}" in refusal.json()["errors"][0]["detail"]
    assert first_problem(nothing_to_go_on) == ("/resume_from/mode", "cannot_continue")
    assert (begins_anew.status_code, begins_its_data_anew.status_code) == (201, 201)


@pytest.mark.own_statement
async def test_a_fork_is_a_new_job_and_lists_its_differences(both: Api) -> None:
    job = await trained(both, name="first", tags=["a"])
    await both.client.patch(f"/jobs/{job}", json={"name": "renamed", "priority": 9})
    patch = {"training": {"learning_rate": 0.05, "logging_steps": 5}, "tags": None, "metadata": {"why": "slower"}}

    answer = await both.client.post(f"/jobs/{job}/fork", json={"checkpoint": "best", "patch": patch})

    assert answer.status_code == 202, answer.text
    fork = ForkedJob.model_validate(answer.json())
    assert answer.headers["location"] == f"/jobs/{fork.id}"
    assert (fork.state, fork.name, fork.priority, fork.tags, fork.last_no) == ("queued", "renamed", 9, (), 2)
    best = (await steps_of(both, job))[10]
    assert (fork.fork.job, fork.fork.checkpoint.id, fork.fork.checkpoint.step) == (job, best, 10)
    assert answer.json()["fork"]["changes"] == [
        {"pointer": "/tags", "from": ["a"], "to": []},
        {"pointer": "/metadata/why", "from": None, "to": "slower"},
        {"pointer": "/training/learning_rate", "from": 0.1, "to": 0.05},
        {"pointer": "/training/logging_steps", "from": 500, "to": 5},
    ]
    assert [pointer.pointer for pointer in fork.fork.breaks_exactness] == ["/training/learning_rate"]
    assert not fork.fork.exact
    spec = await spec_of(both, fork.id)
    assert spec["training"] == {"max_steps": 20, "learning_rate": 0.05, "seed": 7, "logging_steps": 5}
    assert spec["resume_from"] == {"job": job, "checkpoint": best, "path": None, "mode": "full"}
    events = (await both.client.get(f"/jobs/{fork.id}/events")).json()["data"]
    assert [event["kind"] for event in events] == ["state", "note"]
    assert all(name in events[1]["data"]["message"] for name in (job, "step 10", "/training/learning_rate"))
    forks = (await both.client.get(f"/jobs?forked_from={job}")).json()
    assert ([fork["id"] for fork in forks["data"]], forks["total_estimate"]) == ([fork.id], 1)


async def test_a_fork_without_changes_continues_exactly(api: Api) -> None:
    job = await trained(api)

    fork = (await api.client.post(f"/jobs/{job}/fork")).json()

    assert fork["fork"]["checkpoint"]["step"] == 20
    assert (fork["fork"]["changes"], fork["fork"]["exact"], fork["fork"]["breaks_exactness"]) == ([], True, [])
    weights_fork = (await api.client.post(f"/jobs/{job}/fork", json={"mode": "weights"})).json()
    assert [pointer["pointer"] for pointer in weights_fork["fork"]["breaks_exactness"]] == ["/resume_from/mode"]
    events = [(await api.client.get(f"/jobs/{item['id']}/events")).json()["data"] for item in (fork, weights_fork)]
    ends = ["no step is left to train" in event[1]["data"]["message"] for event in events]
    assert ends == [True, False], "a full fork starts at the last step, and a fork of the weights at step 0"


async def test_more_steps_continue_exactly_only_if_the_schedule_is_constant(api: Api) -> None:
    longer = {"patch": {"training": {"max_steps": 40}}}
    falling = await trained(api)
    constant = await trained(api, training={**LEARNS["training"], "lr_scheduler_type": "constant"})

    forks = [(await api.client.post(f"/jobs/{job}/fork", json=longer)).json()["fork"] for job in (falling, constant)]

    assert [fork["exact"] for fork in forks] == [False, True]


async def test_a_fork_names_arguments_that_a_live_command_had_changed(api: Api) -> None:
    job = await trained(api)
    command = Command(no=5, set={"learning_rate": 0.01, "logging_steps": 3}, step=4)
    await api.db.write(lambda conn: commands.insert_command(conn, job, command))

    plain = (await api.client.post(f"/jobs/{job}/fork")).json()["fork"]
    current = (
        await api.client.post(f"/jobs/{job}/fork", json={"patch": {"training": {"learning_rate": 0.01}}})
    ).json()["fork"]

    assert [pointer["pointer"] for pointer in plain["breaks_exactness"]] == ["/training/learning_rate"]
    assert "0.01" in plain["breaks_exactness"][0]["detail"]
    assert [change["pointer"] for change in current["changes"]] == ["/training/learning_rate"]
    assert current["exact"], "a fork with the current learning rate must be exact"


@each_case(
    ("body", "pointer", "code"),
    [
        ({"patch": {"training": {"learning_rat": 1}}}, "/patch/training/learning_rat", "unknown_field"),
        ({"patch": {"model": None}}, "/patch/model", "missing"),
        ({"patch": {"resume_from": None}}, "/patch/resume_from", "not_patchable"),
        ({"patch": {"project": "other"}}, "/patch/project", "not_your_project"),
        ({"patch": {"training": {"seed": 8}}}, "/patch/training/seed", "cannot_change"),
        ({"patch": []}, "/patch", "wrong_type"),
        ({"patc": {}}, "/patc", "unknown_field"),
        ({"mode": "wights"}, "/mode", "unknown_choice"),
        ({"checkpoint": "newest"}, "/checkpoint", "not_well_formed"),
        ({"checkpoint": "ckpt_" + "0" * 32}, "/checkpoint", "unknown_checkpoint"),
    ],
)
async def test_an_error_in_a_fork_points_at_the_field_that_caused_it(
    api: Api, body: Any, pointer: str, code: str
) -> None:
    job = await trained(api)
    before = (await api.client.get("/jobs")).json()["data"]

    assert first_problem(await api.client.post(f"/jobs/{job}/fork", json=body)) == (pointer, code)
    assert (await api.client.get("/jobs")).json()["data"] == before


async def test_a_fork_carries_the_warnings_about_its_patch(api: Api) -> None:
    job = await trained(api)
    patch = {"training": {"per_gpu_eval_batch_size": 4}}

    forked = await api.client.post(f"/jobs/{job}/fork", json={"patch": patch})

    messages = [(warning["code"], warning["pointer"]) for warning in forked.json()["warnings"]]
    assert ("older_name", "/patch/training/per_gpu_eval_batch_size") in messages


async def test_a_job_without_a_checkpoint_cannot_be_forked_and_lists_no_fork(api: Api) -> None:
    job = await api.submit()

    answer = await api.client.post(f"/jobs/{job}/fork")

    assert first_problem(answer) == ("/checkpoint", "no_checkpoint")
    assert "fork" not in (await api.client.get(f"/jobs/{job}")).json()["actions"]
    await api.end(job, JobState.FAILED)
    assert (await api.client.get(f"/jobs/{job}")).json()["actions"] == ["resume", "fork", "delete"]


async def test_a_repeated_request_makes_one_fork_even_if_its_checkpoint_was_deleted(both: Api) -> None:
    job = await trained(both)
    body, headers = {"patch": {"name": "again"}}, {"Idempotency-Key": "k"}
    first = await both.client.post(f"/jobs/{job}/fork", json=body, headers=headers)
    await both.client.post(f"/jobs/{first.json()['id']}/cancel")
    paths = [str(checkpoint_folder(job, 1, step)) for step in (10, 20)]
    await both.db.write(lambda conn: checkpoints.mark(conn, job, paths, checkpoints.DELETED))

    again = await both.client.post(f"/jobs/{job}/fork", json=body, headers=headers)
    other_body = await both.client.post(f"/jobs/{job}/fork", json={}, headers=headers)
    other_job = await both.client.post(f"/jobs/{await trained(both)}/fork", json=body, headers=headers)

    assert (again.status_code, again.json()) == (202, first.json())
    assert again.headers["idempotency-replayed"] == "true"
    assert [other_body.status_code, other_job.status_code] == [422, 422]
    assert other_body.json()["code"] == "idempotency_key_reused"


async def test_a_fork_of_a_job_with_own_code_needs_the_scope_code(serve: Serve, sqlite_url: str) -> None:
    api = await serve(sqlite_url, api_key=KEY, code="on")
    brings, plain = await a_key(api), await a_key(api, scopes=["read", "submit"])
    bundle = await api.client.post(
        "/bundles", content=zipped(my_code="class Net: pass"),
        headers={**bearer(brings), "Content-Type": "application/zip"},
    )  # fmt: skip
    spec = {**LEARNS, "model": "my_code:Net", "code": {"bundle": bundle.json()["sha256"]}}
    job = JobId((await api.client.post("/jobs", json=spec, headers=bearer(brings))).json()["id"])
    await save_checkpoint(api, job, 10)

    refusal = await api.client.post(f"/jobs/{job}/fork", headers=bearer(plain))
    answer = await api.client.post(f"/jobs/{job}/fork", headers=bearer(brings))

    assert (refusal.status_code, answer.status_code) == (403, 202), refusal.text
    assert "'code'" in refusal.json()["detail"]


async def test_a_fork_is_logged_in_the_audit_log(api: Api, caplog: pytest.LogCaptureFixture) -> None:
    job = await trained(api)

    with caplog.at_level(logging.INFO, logger="footplate.audit"):
        fork = (await api.client.post(f"/jobs/{job}/fork")).json()

    assert f"job {job} of project default forked as {fork['id']}" in caplog.text


@pytest.mark.parametrize(
    ("target", "patch", "result"),
    [
        ({"a": "b"}, {"a": "c"}, {"a": "c"}),
        ({"a": "b"}, {"b": "c"}, {"a": "b", "b": "c"}),
        ({"a": "b"}, {"a": None}, {}),
        ({"a": "b", "b": "c"}, {"a": None}, {"b": "c"}),
        ({"a": ["b"]}, {"a": "c"}, {"a": "c"}),
        ({"a": "c"}, {"a": ["b"]}, {"a": ["b"]}),
        ({"a": {"b": "c"}}, {"a": {"b": "d", "c": None}}, {"a": {"b": "d"}}),
        ({"a": [{"b": "c"}]}, {"a": [1]}, {"a": [1]}),
        (["a", "b"], ["c", "d"], ["c", "d"]),
        ({"a": "b"}, ["c"], ["c"]),
        ({"a": "foo"}, None, None),
        ({"a": "foo"}, "bar", "bar"),
        ({"e": None}, {"a": 1}, {"e": None, "a": 1}),
        ([1, 2], {"a": "b", "c": None}, {"a": "b"}),
        ({}, {"a": {"bb": {"ccc": None}}}, {"a": {"bb": {}}}),
    ],
)
def test_a_patch_is_merged_as_rfc_7396_shows(target: Any, patch: Any, result: Any) -> None:
    assert merged(target, patch) == result


def test_the_rules_about_arguments_name_arguments_that_exist() -> None:
    names = {*TrainingArguments.__dataclass_fields__}
    assert names >= NEUTRAL_TRAINING
    assert names >= {place.split("/")[2] for place, _ in WHY if place.startswith("/training/")}
