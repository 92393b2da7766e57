"""One job over HTTP is submitted, read, changed, stopped and deleted. The list shows all jobs."""

from __future__ import annotations

import asyncio
import json
from base64 import urlsafe_b64encode
from itertools import product
from typing import Any

import pytest

from footplate.contract.ids import new_job_id
from tests.service.api.conftest import SPEC, Api, each_case


async def test_the_location_header_of_a_posted_job_leads_to_the_job(both: Api) -> None:
    created = await both.client.post("/jobs", json={**SPEC, "name": "first", "tags": ["demo"]})

    assert created.status_code == 201
    result = await both.client.get(created.headers["Location"])
    assert result.status_code == 200
    assert result.json() == created.json()
    assert result.headers["ETag"] == created.headers["ETag"]
    assert (result.json()["state"], result.json()["actions"]) == ("queued", ["pause", "cancel"])
    assert (result.json()["name"], result.json()["tags"], result.json()["warnings"]) == ("first", ["demo"], [])


@pytest.mark.own_statement
async def test_the_same_idempotency_key_and_body_make_one_job(both: Api) -> None:
    headers = {"Idempotency-Key": "one"}

    answers = await asyncio.gather(*(both.client.post("/jobs", json=SPEC, headers=headers) for _ in range(20)))

    assert {answer.status_code for answer in answers} == {201}
    assert len({answer.text for answer in answers}) == 1
    assert len({answer.headers["ETag"] for answer in answers}) == 1
    assert sum("Idempotency-Replayed" in answer.headers for answer in answers) == 19
    assert (await both.client.get("/jobs")).json()["total_estimate"] == 1


async def test_a_repeated_post_is_answered_although_its_file_was_deleted_since(both: Api) -> None:
    file = (await both.client.post("/files?name=rows.jsonl", content=b'{"x": 1}\n')).json()["id"]
    spec, headers = {**SPEC, "data": file}, {"Idempotency-Key": "once"}
    first = await both.client.post("/jobs", json=spec, headers=headers)
    await both.client.post(first.headers["Location"] + "/cancel")
    assert (await both.client.delete(f"/files/{file}")).status_code == 204

    again = await both.client.post("/jobs", json=spec, headers=headers)

    assert (again.status_code, again.text, again.headers["Idempotency-Replayed"]) == (201, first.text, "true")


async def test_a_malformed_idempotency_key_is_refused(api: Api) -> None:
    for key in ("", "x" * 256, "tab\there"):
        answer = await api.client.post("/jobs", json=SPEC, headers={"Idempotency-Key": key})
        assert (answer.status_code, answer.json()["code"]) == (422, "invalid_header")


async def test_a_job_carries_the_warnings_about_its_spec_and_so_does_a_replay(both: Api) -> None:
    spec = {**SPEC, "training": {"warmup_ratio": 0.5, "max_steps": 2}}
    headers = {"Idempotency-Key": "warned"}

    first = await both.client.post("/jobs", json=spec, headers=headers)
    again = await both.client.post("/jobs", json=spec, headers=headers)
    dry = await both.client.post("/jobs/validate", json=spec)
    job = (await both.client.get(first.headers["Location"])).json()
    stored_spec = (await both.client.get(f"{first.headers['Location']}/spec")).json()

    messages = [(warning["code"], warning["pointer"]) for warning in first.json()["warnings"]]
    assert messages == [("older_name", "/training/warmup_ratio"), ("no_loss_shown", "/training/max_steps")]
    assert again.json()["warnings"] == dry.json()["warnings"] == job["warnings"] == first.json()["warnings"]
    assert stored_spec["training"] == dry.json()["spec"]["training"] == {"warmup_steps": 0.5, "max_steps": 2}


async def test_all_errors_of_a_spec_are_reported_at_once_with_pointer_and_hint(api: Api) -> None:
    spec = {"model": "toy/mlp", "data": "toy/regression", "tgas": [], "training": {"learning_rat": 1, "max_steps": "x"}}

    for path in ("/jobs", "/jobs/validate"):
        answer = await api.client.post(path, json=spec)

        assert answer.status_code == 422
        result = {error["pointer"]: error for error in answer.json()["errors"]}
        assert set(result) == {"/tgas", "/training/learning_rat", "/training/max_steps"}
        assert result["/tgas"]["hint"] == "did you mean 'tags'?"
        assert "learning_rate" in result["/training/learning_rat"]["hint"]


async def test_an_operator_sees_a_job_if_its_project_is_named(api: Api) -> None:
    answer = await api.client.post("/jobs", json={**SPEC, "project": "other"})

    assert answer.headers["location"] == f"/jobs/{answer.json()['id']}?project=other"
    assert (await api.client.get(answer.headers["location"])).json()["project"] == "other"
    assert (await api.client.get("/jobs")).json()["data"] == []
    assert len((await api.client.get("/jobs?project=other")).json()["data"]) == 1


@pytest.mark.own_statement
async def test_a_patch_changes_only_the_fields_that_were_sent(both: Api) -> None:
    job = await both.submit(name="before", tags=["a"])
    before = await both.client.get(f"/jobs/{job}")

    changed = await both.client.patch(
        f"/jobs/{job}", json={"tags": ["b"], "priority": 9}, headers={"If-Match": before.headers["ETag"]}
    )

    assert changed.status_code == 200, changed.text
    body = changed.json()
    assert (body["name"], body["tags"], body["priority"]) == ("before", ["b"], 9)
    assert changed.headers["ETag"] != before.headers["ETag"]
    late = await both.client.patch(f"/jobs/{job}", json={"name": "late"}, headers={"If-Match": before.headers["ETag"]})
    assert (late.status_code, late.json()["code"]) == (412, "version_changed")


@each_case(
    ("body", "pointer", "hint"),
    [
        ({}, "", "send one or more of name, tags, metadata, priority"),
        ({"nmae": "x"}, "/nmae", "did you mean 'name'?"),
        ({"priority": "high"}, "/priority", None),
        ({"priority": 101}, "/priority", None),
        ({"tags": [1]}, "/tags/0", None),
        ([], "", None),
    ],
)
async def test_an_empty_or_wrong_patch_is_refused(api: Api, body: Any, pointer: str, hint: str) -> None:
    job = await api.submit()

    answer = await api.client.patch(f"/jobs/{job}", json=body)

    assert answer.status_code == 422
    assert answer.json()["errors"][0]["pointer"] == pointer
    assert answer.json()["errors"][0].get("hint") == hint


async def test_an_action_refuses_unknown_fields_in_its_body(api: Api) -> None:
    job = await api.submit()

    wrong_mode = await api.client.post(f"/jobs/{job}/cancel", json={"mode": "softly"})
    typo = await api.client.post(f"/jobs/{job}/cancel", json={"mod": "kill"})
    pause = await api.client.post(f"/jobs/{job}/pause", json={"mode": "kill"})
    kill = await api.client.post(f"/jobs/{job}/cancel", json={"mode": "kill"})

    assert [answer.status_code for answer in (wrong_mode, typo, pause, kill)] == [422, 422, 422, 202]
    assert "graceful" in wrong_mode.json()["errors"][0]["detail"]
    assert typo.json()["errors"][0]["hint"] == "did you mean 'mode'?"


async def test_resume_may_raise_limits(both: Api) -> None:
    job = await both.submit(training={"max_steps": 10})
    await both.client.post(f"/jobs/{job}/pause")

    resumed = await both.client.post(f"/jobs/{job}/resume", json={"max_steps": 20, "priority": 9})

    assert (resumed.status_code, resumed.json()["priority"]) == (202, 9)
    assert (await both.client.get(f"/jobs/{job}/spec")).json()["training"]["max_steps"] == 20


@pytest.mark.parametrize(
    ("changes", "pointer"),
    [
        ({"time_limit": True}, "/time_limit"),
        ({"time_limit": "4 moons"}, "/time_limit"),
        ({"time_limit": 0}, "/time_limit"),
        ({"pool": "a b"}, "/pool"),
        ({"resources": {"pool": "a b"}}, "/resources/pool"),
    ],
)
async def test_a_refused_resume_points_at_the_field_of_its_request(
    api: Api, changes: dict[str, Any], pointer: str
) -> None:
    job = await api.submit()
    await api.client.post(f"/jobs/{job}/pause")

    answer = await api.client.post(f"/jobs/{job}/resume", json=changes)

    assert [error["pointer"] for error in answer.json()["errors"]] == [pointer]


async def test_only_a_job_that_has_ended_can_be_deleted_and_its_files_go_with_it(both: Api) -> None:
    job = await both.submit()
    folder = both.services.settings.artifacts_path / "jobs" / job / "attempts" / "1"
    folder.mkdir(parents=True)
    (folder / "weights").write_text("…")

    early = await both.client.delete(f"/jobs/{job}")
    await both.client.post(f"/jobs/{job}/cancel")
    stale = await both.client.delete(f"/jobs/{job}", headers={"If-Match": '"1"'})
    deletion = await both.client.delete(f"/jobs/{job}")

    assert (early.status_code, early.json()["code"]) == (409, "conflict")
    assert stale.status_code == 412
    assert (deletion.status_code, deletion.content) == (204, b"")
    assert not folder.parent.parent.exists()
    assert (await both.client.get(f"/jobs/{job}")).status_code == 404


async def test_an_unknown_job_is_a_404_everywhere(api: Api) -> None:
    verbs = ("", "/events", "/metrics", "/metrics/summary", "/metrics/series", "/logs", "/attempts", "/spec",
             "/checkpoints", "/outputs", "/outputs/x", "/stream")  # fmt: skip
    for job, verb in product((new_job_id(), "nonsense", "job_" + "Z" * 32, "%00", "job_..%2f"), verbs):
        missing = await api.client.get(f"/jobs/{job}{verb}")
        assert (missing.status_code, missing.headers["content-type"]) == (404, "application/problem+json"), (job, verb)


@pytest.mark.own_statement
async def test_the_list_is_filtered_sorted_and_paged_without_a_gap(both: Api) -> None:
    jobs = [await both.submit(name=f"n{n % 2}", tags=[f"t{n % 3}"], priority=n) for n in range(7)]
    await both.client.post(f"/jobs/{jobs[0]}/cancel")

    async def ids(query: str) -> list[str]:
        answer = await both.client.get(f"/jobs?{query}")
        assert answer.status_code == 200, answer.text
        return [job["id"] for job in answer.json()["data"]]

    assert await ids("") == jobs[::-1]
    assert await ids("sort=created") == jobs
    assert await ids("sort=-priority&limit=2") == jobs[:4:-1]
    assert await ids("state=cancelled,failed") == jobs[:1]
    assert await ids("tag=t1&sort=created") == [jobs[1], jobs[4]]
    assert await ids("name=n1&tag=t1") == [jobs[1]]
    middle = (await both.client.get(f"/jobs/{jobs[3]}")).json()["created_at"]
    assert await ids(f"ids={jobs[4]},{jobs[2]},{new_job_id()}&name=n0") == [jobs[4], jobs[2]]
    assert jobs[3] in await ids(f"created_after={middle}")
    assert jobs[3] not in await ids(f"created_before={middle}")
    assert [job["id"] for job in await both.pages("/jobs", limit=3)] == jobs[::-1]


@each_case(
    ("query", "pointer", "hint"),
    [
        ("stat=queued", "/query/stat", "did you mean 'state'?"),
        ("include=spec,steps", "/query/include", None),
        ("ids=", "/query/ids", None),
        ("state=queud", "/query/state", "did you mean 'queued'?"),
        ("state=", "/query/state", None),
        ("state=queued,", "/query/state", None),
        ("tag=", "/query/tag", None),
        ("name=", "/query/name", None),
        ("project=", "/query/project", None),
        ("cursor=", "/query/cursor", None),
        ("limit=", "/query/limit", None),
        ("limit=0", "/query/limit", None),
        ("limit=1&limit=2", "/query/limit", None),
        ("cursor=nonsense", "/query/cursor", None),
        ("created_after=yesterday", "/query/created_after", None),
        ("created_after=0", "/query/created_after", None),
        ("created_before=2026-01-31", "/query/created_before", None),
        ("sort=size", "/query/sort", None),
    ],
)
async def test_a_wrong_query_of_the_list_is_refused_by_name(
    api: Api, query: str, pointer: str, hint: str | None
) -> None:
    answer = await api.client.get(f"/jobs?{query}")

    assert answer.status_code == 422, answer.text
    error = answer.json()["errors"][0]
    assert error["pointer"] == pointer
    if hint:
        assert error["hint"] == hint


def forged(*place: Any) -> str:
    return urlsafe_b64encode(json.dumps(place).encode()).decode().rstrip("=")


SOME_JOB = "job_" + "1" * 32


@each_case("query", [
    "tag=%00", "name=a%00b", "project=%00", "name=%ff", "name=%ed%a0%80",
    f"sort=name&cursor={forged('name', chr(0xD800), SOME_JOB)}", f"sort=name&cursor={forged('name', chr(0), SOME_JOB)}",
    f"sort=priority&cursor={forged('priority', 10**30, SOME_JOB)}", f"cursor={forged('-created', 0, chr(0))}",
])  # fmt: skip
@pytest.mark.own_statement
async def test_filters_with_impossible_values_match_no_job(both: Api, query: str) -> None:
    answer = await both.client.get(f"/jobs?{query}")

    assert answer.status_code in (200, 422), answer.text
    assert not answer.json().get("data")


async def test_validation_shows_the_effective_spec_and_why_the_job_would_wait(both: Api) -> None:
    result = await both.client.post("/jobs/validate", json={**SPEC, "training": {"max_steps": 30}})

    assert result.status_code == 200, result.text
    assert result.json()["spec"]["model"] == {"use": "toy/mlp", "args": {}}
    assert result.json()["steps"] == 30
    assert result.json()["placement"]["waits"] is True
    assert result.json()["placement"]["reason"] == "no_such_shape"
    assert (await both.client.get("/jobs")).json()["data"] == []


async def test_events_and_metrics_are_paged_by_number(both: Api) -> None:
    job = await both.submit()
    await both.append(job, *[{"loss": n} for n in range(25)])

    numbers = [event["no"] for event in await both.pages(f"/jobs/{job}/events", "after", limit=10)]
    metrics = (await both.client.get(f"/jobs/{job}/metrics?after=20")).json()

    assert numbers == list(range(1, 27))
    assert metrics["data"][0] == {"no": 21, "step": None, "epoch": None, "loss": 19}
    assert (metrics["last"], metrics["next_cursor"]) == (26, None)
    state = (await both.client.get(f"/jobs/{job}/events?kinds=state")).json()
    assert ([event["no"] for event in state["data"]], state["last"]) == ([1], 26)
