"""Tests POST /jobs/bulk, which applies one verb to many jobs and answers for each job."""

from __future__ import annotations

from typing import Any

import pytest

from footplate.contract.ids import JobId, new_job_id
from footplate.contract.lifecycle import JobState
from service.api import bulk
from service.store import jobs
from tests.service.api.conftest import Api, each_case


async def ask(api: Api, **body: Any) -> dict[str, Any]:
    answer = await api.client.post("/jobs/bulk", json=body)
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


async def state(api: Api, job: JobId) -> str:
    return str((await api.client.get(f"/jobs/{job}")).json()["state"])


async def test_a_bulk_answer_holds_the_answer_of_a_single_request_for_every_job(both: Api) -> None:
    waits, finished_job, missing = await both.submit(), await both.submit(), new_job_id()
    await both.end(finished_job)

    report = await ask(both, action="cancel", ids=[waits, finished_job, missing, "nonsense", waits])

    outcomes = {row["job"]: (row["state"], row["error"] and row["error"]["status"]) for row in report["data"]}
    assert outcomes == {
        waits: ("cancelled", None), finished_job: ("succeeded", 409), missing: (None, 404), "nonsense": (None, 404),
    }  # fmt: skip
    assert report["data"][1]["error"]["allowed"] == ["fork", "delete"]
    again = await ask(both, action="cancel", ids=[waits])
    assert again["data"] == [{"job": waits, "state": "cancelled", "error": None}]
    version = (await both.client.get(f"/jobs/{waits}")).json()["version"]
    assert version == 2


async def test_a_bulk_action_changes_only_matching_jobs_that_allow_the_action(both: Api) -> None:
    mine = [await both.submit(tags=["sweep"]) for _ in range(3)]
    other = await both.submit()
    await both.end(mine[0], JobState.FAILED)

    paused = await ask(both, action="pause", where={"tag": "sweep"})
    resumed = await ask(both, action="resume", where={"tag": "sweep", "state": ["failed"]})
    nobody = await ask(both, action="delete", where={"tag": "sweep", "state": ["queued"]})

    assert {row["job"] for row in paused["data"]} == set(mine[1:])
    assert [row["job"] for row in resumed["data"]] == [mine[0]]
    assert nobody == {"data": [], "next_cursor": None}
    assert [await state(both, job) for job in (*mine, other)] == ["queued", "paused", "paused", "queued"]


async def test_a_bulk_delete_deletes_the_files_as_well(api: Api) -> None:
    job = await api.submit(tags=["old"])
    await api.end(job)
    folder = api.services.settings.artifacts_path / "jobs" / job
    folder.mkdir(parents=True)

    report = await ask(api, action="delete", where={"tag": "old"})

    assert report["data"] == [{"job": job, "state": None, "error": None}]
    assert (await api.client.get(f"/jobs/{job}")).status_code == 404
    assert not folder.exists()


async def test_further_matching_jobs_follow_after_the_cursor(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bulk, "MOST", 2)
    for _ in range(5):
        await api.submit(tags=["sweep"])

    cursor, sizes = None, []
    while not sizes or cursor is not None:
        more = {} if cursor is None else {"cursor": cursor}
        report = await ask(api, action="cancel", where={"tag": "sweep"}, **more)
        sizes.append(len(report["data"]))
        cursor = report["next_cursor"]

    assert sizes == [2, 2, 1]
    assert await api.db.read(lambda conn: jobs.state_counts(conn)) == {"cancelled": 5}


@each_case(("body", "pointer"), [
    ({"action": "cancel"}, ""),
    ({"action": "cancel", "ids": ["a"], "where": {"tag": "b"}}, ""),
    ({"action": "cancel", "where": {}}, "/where"),
    ({"action": "cancel", "ids": []}, "/ids"),
    ({"action": "cancel", "ids": ["a"] * 501}, "/ids"),
    ({"action": "cancel", "ids": ["a"], "cursor": "c"}, "/cursor"),
    ({"action": "cancel", "where": {"tga": "b"}}, "/where/tga"),
    ({"action": "cancel", "where": {"state": ["runing"]}}, "/where/state/0"),
    ({"action": "pause", "ids": ["a"], "mode": "kill"}, "/mode"),
    ({"action": "do", "ids": ["a"]}, "/action"),
    ({"action": "stop", "ids": ["a"]}, "/action"),
])  # fmt: skip
async def test_a_bulk_request_without_a_selection_is_refused(api: Api, body: Any, pointer: str) -> None:
    answer = await api.client.post("/jobs/bulk", json=body)

    assert answer.status_code == 422, answer.text
    assert [error["pointer"] for error in answer.json()["errors"]] == [pointer]
    if pointer == "/action":
        assert "fork" not in answer.text, "only verbs that work for many jobs are offered"
