"""The queue shows waiting jobs, their order and their reasons. Of other projects it shows only the number of jobs."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import insert

from footplate.contract.ids import JobId
from footplate.contract.resources.jobs import Queue
from service.store import jobs
from service.store.tables import attempts as table
from service.store.times import now_ms, text_of
from tests.conformance.acting import place_waiting
from tests.service.api.conftest import KEY, SPEC, Api, Serve
from tests.service.api.test_keys import a_key, bearer


async def queue(api: Api, query: str = "", **options: Any) -> Queue:
    answer = await api.client.get(f"/queue?{query}", **options)
    assert answer.status_code == 200, answer.text
    return Queue.model_validate_json(answer.content)


@pytest.mark.own_statement
async def test_the_queue_is_in_placement_order_and_each_job_has_its_reason(both: Api) -> None:
    low, high, gpu = (
        await both.submit(),
        await both.submit(priority=9),
        await both.submit(resources={"gpus_per_node": 1, "gpu": "H100"}),
    )
    await both.db.write(lambda conn: place_waiting(conn, now_ms()))

    result = await queue(both)

    assert [(row.job, row.place, row.ahead.yours) for row in result.data] == [(high, 1, 0), (low, 2, 1), (gpu, 3, 2)]
    assert {row.reason for row in result.data} == {"no_such_shape"}
    assert result.data[2].needs == "1 H100 GPU in pool 'default'"
    assert "no node that takes work" in (result.data[2].message or "")
    assert 0 <= result.data[0].waited_s < 60
    assert (result.waiting.yours, result.waiting.others) == (3, 0)
    (only,) = (await queue(both, f"job={low}")).data
    assert (only.job, only.place) == (low, 2)


@pytest.mark.own_statement
async def test_waiting_time_restarts_after_an_attempt_and_the_age_does_not(both: Api) -> None:
    job = await both.submit()
    an_hour_ago, just_now = now_ms() - 3_600_000, now_ms()
    query = insert(table).values(job_id=job, attempt=1, fence=1, placed_at=an_hour_ago, ended_at=just_now, running_ms=0)
    await both.db.write(lambda conn: conn.execute(query))
    await both.db.write(lambda conn: jobs.record(conn, JobId(job), queued_at=an_hour_ago, attempt=1))

    (row,) = (await queue(both)).data

    assert 0 <= row.waited_s < 600
    assert row.queued_at == text_of(an_hour_ago)


async def test_places_in_the_queue_are_counted_per_pool(api: Api) -> None:
    await api.submit(priority=9)
    other = await api.submit(resources={"pool": "big"})

    (row,) = (await queue(api, f"job={other}")).data

    assert (row.pool, row.place, row.ahead.yours) == ("big", 1, 0)


async def test_a_job_in_backoff_has_no_place_and_names_its_time(api: Api) -> None:
    late, now = await api.submit(priority=9), await api.submit()
    at = now_ms() + 60_000
    await api.db.write(lambda conn: jobs.record(conn, late, not_before=at))

    first, second = (await queue(api)).data

    assert (first.job, first.place, first.starts_after) == (now, 1, None)
    assert (second.job, second.place, second.starts_after) == (late, None, second.starts_after)
    assert second.starts_after


async def test_pages_of_the_queue_are_consistent_while_jobs_start(api: Api) -> None:
    waiting = [await api.submit() for _ in range(5)]
    first = await queue(api, "limit=2")
    await api.client.post(f"/jobs/{waiting[1]}/cancel")

    second = await queue(api, f"limit=9&cursor={first.next_cursor}")

    assert [row.job for row in first.data + second.data] == waiting
    assert second.next_cursor is None
    beyond_sql = f"0.{10**15}.1.{waiting[0]}"
    for wrong in ("nonsense", beyond_sql):
        problem = (await api.client.get(f"/queue?cursor={wrong}")).json()
        assert problem["errors"][0]["pointer"] == "/query/cursor"


async def test_a_key_sees_only_the_number_of_other_projects_waiting_jobs(serve: Serve, sqlite_url: str) -> None:
    api = await serve(sqlite_url, api_key=KEY)
    mine, theirs = bearer(await a_key(api, "vision")), bearer(await a_key(api, "speech"))
    secret = {
        **SPEC,
        "priority": 9,
        "name": "a secret plan",
        "tags": ["hush"],
        "resources": {"gpus_per_node": 1, "gpu": "B300"},
    }
    there = (await api.client.post("/jobs", json=secret, headers=theirs)).json()["id"]
    here = (await api.client.post("/jobs", json=SPEC, headers=mine)).json()["id"]
    await api.db.write(lambda conn: place_waiting(conn, now_ms()))

    report = await api.client.get("/queue", headers=mine)

    result = Queue.model_validate_json(report.content)
    assert [(row.job, row.place, row.ahead.yours, row.ahead.others) for row in result.data] == [(here, 2, 0, 1)]
    assert (result.waiting.yours, result.waiting.others) == (1, 1)
    for word in (there, "secret", "speech", "hush", "B300"):
        assert word not in report.text
    assert (await api.client.get(f"/queue?job={there}", headers=mine)).status_code == 404
    assert [row.project for row in (await queue(api)).data] == ["speech", "vision"]
    assert [row.job for row in (await queue(api, "project=vision")).data] == [here]


async def test_a_running_job_is_not_in_the_queue(api: Api) -> None:
    job = await api.submit()
    await api.end(job)

    assert (await queue(api, f"job={job}")).data == ()
