"""Tests predictions of a checkpoint with a real Redis. The test plays the node on which the session runs."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from redis.asyncio import Redis
from sqlalchemy import Connection

from footplate.contract import redis_keys
from footplate.contract.ids import Fence, JobId, new_checkpoint_id
from footplate.contract.lifecycle import JobState, Reason
from footplate.contract.serving import AnswerPiece, AnswerPieceKind
from service.jobs import stopping
from service.jobs.serving import find, open_session, session_spec
from service.store import checkpoints, jobs
from service.store.row_types import JobRow
from service.store.times import now_ms
from tests.service.api.conftest import PATIENCE, Api, Serve
from tests.support.processes import until_async
from tests.support.redis_server import RedisServer


class Node:
    """Plays the node of a session, which takes requests from Redis and answers them."""

    def __init__(self, api: Api, redis: Redis) -> None:
        self.api, self.redis = api, redis

    async def sessions(self, job: JobId) -> list[JobId]:
        rows = await self.api.db.read(lambda conn: jobs.started_from(conn, job))
        return [row.id for row in rows]

    async def next_request(self, session: JobId) -> dict[str, Any]:
        item = await self.redis.blpop([redis_keys.serving_queue(session)], timeout=PATIENCE)
        assert item is not None, "the session received no request"
        body = await self.redis.getdel(redis_keys.serving_request(item[1].decode()))
        assert body is not None, "the request has no body"
        return dict(json.loads(body))

    async def send_piece(self, request: str, kind: AnswerPieceKind, **data: Any) -> None:
        await self.redis.rpush(
            redis_keys.serving_answer(request), AnswerPiece(id=request, kind=kind, data=data).model_dump_json()
        )

    async def answer(self, request: str, **data: Any) -> None:
        await self.send_piece(request, AnswerPieceKind.STARTED)
        await self.send_piece(request, AnswerPieceKind.DONE, **data)


@pytest.fixture(scope="module")
def standing_redis() -> Iterator[RedisServer]:
    """Starts one Redis for all tests of a module. Each test has sessions of its own."""
    server = RedisServer().start()
    yield server
    server.close()


@pytest.fixture
async def api(serve: Serve, sqlite_url: str, standing_redis: RedisServer) -> Api:
    return await serve(sqlite_url, redis=standing_redis.url)


@pytest.fixture
async def node(api: Api, standing_redis: RedisServer) -> AsyncIterator[Node]:
    # redis-py aborts a read after five seconds, so a longer blpop would raise an error.
    client = Redis.from_url(standing_redis.url, socket_timeout=2 * PATIENCE)
    yield Node(api, client)
    await client.aclose()


async def trained(api: Api, steps: int = 1, **spec: Any) -> JobId:
    """Returns a job that has ended, with checkpoints of the steps 1 to `steps`."""
    job = await api.submit(**spec)
    for step in range(1, steps + 1):
        await api.commit(job, step)
    await api.end(job)
    return job


async def session_of(node: Node, job: JobId, after: JobId | None = None) -> JobId:
    """Waits for a session of a job other than `after`, and returns the newest one."""

    async def newest() -> JobId | None:
        sessions = [session for session in await node.sessions(job) if session != after]
        return sessions[-1] if sessions else None

    session = await until_async(newest, what="a session is open")
    assert session is not None
    return session


async def test_a_prediction_opens_a_session_and_later_ones_share_it(api: Api, node: Node) -> None:
    job = await trained(api)
    first = asyncio.create_task(api.client.post(f"/jobs/{job}/predict", json={"inputs": [{"x": [1.0]}]}))
    session = await session_of(node, job)
    request = await node.next_request(session)
    await node.answer(request["id"], predictions=[{"output": [2.0]}])
    second = asyncio.create_task(api.client.post(f"/jobs/{job}/predict", json={"inputs": ["a", "b"]}))
    await node.answer((await node.next_request(session))["id"], predictions=[{}, {}])
    of_the_session = asyncio.create_task(api.client.post(f"/jobs/{session}/predict", json={"inputs": ["a"]}))
    await node.answer((await node.next_request(session))["id"], predictions=[{}])

    answer = (await first).json()
    assert (answer["job"], answer["session"], answer["data"]) == (job, session, [{"output": [2.0]}])
    assert answer["checkpoint"]["step"] == 1
    assert (await second).json()["session"] == session
    assert (await of_the_session).json()["session"] == session
    assert request["body"]["inputs"] == [{"x": [1.0]}]
    spec = (await api.client.get(f"/jobs/{session}/spec")).json()
    assert (spec["model"]["use"], spec["data"]["train"], spec["retry"]["max_attempts"]) == ("toy/mlp", None, 1)


async def test_a_served_checkpoint_cannot_be_deleted(api: Api, node: Node) -> None:
    job = await trained(api, steps=2)
    waiting = asyncio.create_task(api.client.post(f"/jobs/{job}/predict", json={"inputs": [1]}))
    session = await session_of(node, job)

    refusal = await api.client.delete(f"/jobs/{job}")
    await node.answer((await node.next_request(session))["id"], predictions=[{}])
    await waiting

    assert (refusal.status_code, refusal.json()["code"]) == (409, "checkpoint_in_use")
    assert session in refusal.json()["detail"]


async def test_a_model_is_deleted_through_openais_api_while_its_session_is_idle(api: Api, node: Node) -> None:
    job = await trained(api)
    waiting = asyncio.create_task(api.client.post(f"/jobs/{job}/predict", json={"inputs": [1]}))
    session = await session_of(node, job)
    await node.answer((await node.next_request(session))["id"], predictions=[{}])
    await waiting

    deleted = await api.client.delete(f"/v1/models/{job}")

    assert (deleted.status_code, deleted.json()["deleted"]) == (200, True)
    ended_session = (await api.client.get(f"/jobs/{session}")).json()
    assert (ended_session["state"], ended_session["reason"]) == ("cancelled", Reason.CANCEL)


async def test_a_prediction_is_refused_with_429_if_the_queue_of_its_session_is_full(api: Api, node: Node) -> None:
    job = await trained(api)
    waiting = asyncio.create_task(api.client.post(f"/jobs/{job}/predict", json={"inputs": [0]}))
    session = await session_of(node, job)
    request = await node.next_request(session)
    body = {"inputs": [1], "wait": PATIENCE}
    many = [asyncio.create_task(api.client.post(f"/jobs/{job}/predict", json=body)) for _ in range(50)]
    task_count = 0
    while task_count < 34:
        tasks, _ = await asyncio.wait([task for task in many if not task.done()], return_when="FIRST_COMPLETED")
        task_count += len(tasks)
    refusals = [task.result() for task in many if task.done()]
    await node.answer(request["id"], predictions=[{}])
    for _ in range(16):
        await node.answer((await node.next_request(session))["id"], predictions=[{}])

    assert {(answer.status_code, answer.json()["code"]) for answer in refusals} == {(429, "serving_busy")}
    assert all(int(answer.headers["retry-after"]) > 0 for answer in refusals)
    assert len(refusals) == 34
    assert {(await task).status_code for task in many} == {200, 429}
    assert (await waiting).status_code == 200
    assert await node.redis.keys("fp:serve:request:*") == [], "Redis must not keep a refused request"


async def test_a_prediction_that_waits_for_a_slot_names_the_session_that_holds_it(api: Api, node: Node) -> None:
    first, second = await trained(api), await trained(api)
    waiting = asyncio.create_task(api.client.post(f"/jobs/{first}/predict", json={"inputs": [1]}))
    session = await session_of(node, first)
    request = await node.next_request(session)

    def start(conn: Connection) -> None:
        for to, reason in ((JobState.STARTING, Reason.PLACED), (JobState.RUNNING, Reason.TRAINING)):
            row = jobs.lock(conn, session)
            assert row
            jobs.move(conn, session, to=to, expect=[row.state], reason=reason, now=now_ms(), next_attempt=1,
                      next_fence=Fence(1))  # fmt: skip

    await api.db.write(start)
    answer = await api.client.post(f"/jobs/{second}/predict", json={"inputs": [1], "wait": 0})
    await node.answer(request["id"], predictions=[{}])

    assert (answer.status_code, answer.json()["code"]) == (503, "not_served_yet")
    assert f"footplate cancel {session}" in answer.json()["hint"]
    assert (await waiting).status_code == 200


async def test_a_session_that_does_not_start_in_time_is_cancelled_and_named(api: Api, node: Node) -> None:
    job = await trained(api)

    answer = await api.client.post(f"/jobs/{job}/predict", json={"inputs": [1], "wait": 0})

    assert (answer.status_code, answer.json()["code"]) == (503, "not_served_yet")
    assert int(answer.headers["retry-after"]) > 0
    assert "queued" in answer.json()["detail"]
    assert await node.sessions(job) == [], "a session for which no request waits must be cancelled"
    assert await node.redis.keys("fp:serve:*") == []


async def test_a_session_that_fails_to_load_is_named_with_its_reason(api: Api, node: Node) -> None:
    job = await trained(api)
    waiting = asyncio.create_task(api.client.post(f"/jobs/{job}/predict", json={"inputs": [1]}))
    session = await session_of(node, job)
    await api.end(session, JobState.FAILED)

    answer = (await waiting).json()

    assert answer["code"] == "serving_failed"
    assert session in answer["detail"]


async def test_a_request_that_an_ended_session_has_not_begun_goes_to_a_new_session(api: Api, node: Node) -> None:
    job = await trained(api)
    waiting = asyncio.create_task(api.client.post(f"/jobs/{job}/predict", json={"inputs": [1]}))
    first = await session_of(node, job)
    request = await node.next_request(first)
    await api.end(first)
    await node.send_piece(request["id"], AnswerPieceKind.AGAIN)
    second = await session_of(node, job, after=first)
    await node.answer((await node.next_request(second))["id"], predictions=[{"output": 1}])

    answer = (await waiting).json()
    assert (answer["session"], answer["data"]) == (second, [{"output": 1}])
    assert second != first


async def test_a_prediction_with_a_missing_or_unknown_checkpoint_is_refused(api: Api) -> None:
    empty, looped = await api.submit(), await trained(api)
    missing = await api.client.post(f"/jobs/{empty}/predict", json={"inputs": [1]})
    unknown = await api.client.post(f"/jobs/{looped}/predict", json={"inputs": [1], "checkpoint": new_checkpoint_id()})

    codes = [(answer.status_code, answer.json()["code"]) for answer in (missing, unknown)]
    assert codes == [(409, "no_checkpoint"), (409, "unknown_checkpoint")]


async def test_a_refused_prediction_of_a_job_without_checkpoints_hints_at_its_outputs(api: Api) -> None:
    ended_job, failed_job = await api.submit(), await api.submit()
    await api.end(ended_job)
    await api.end(failed_job, JobState.FAILED)

    async def hint(job: JobId) -> str:
        answer = await api.client.post(f"/jobs/{job}/predict", json={"inputs": [1]})
        assert (answer.status_code, answer.json()["code"]) == (409, "no_checkpoint")
        return str(answer.json()["hint"])

    assert f"footplate download {ended_job}" in await hint(ended_job)
    assert "keep the checkpoints" in await hint(ended_job)
    assert (await hint(failed_job)).startswith("submit the job's spec")


async def test_a_session_of_the_latest_checkpoint_ends_after_a_newer_checkpoint(api: Api, node: Node) -> None:
    job = await trained(api)
    waiting = asyncio.create_task(api.client.post(f"/jobs/{job}/predict", json={"inputs": [1]}))
    older = await session_of(node, job)
    await node.answer((await node.next_request(older))["id"], predictions=[{}])
    await waiting

    def newer(conn: Any) -> None:
        row = checkpoints.of_job(conn, job)[0]
        checkpoints.insert_checkpoint(conn, replace(row, id=new_checkpoint_id(), step=9, no=9))

    await api.db.write(newer)
    again = asyncio.create_task(api.client.post(f"/jobs/{job}/predict", json={"inputs": [1]}))
    session = await session_of(node, job, after=older)
    await node.answer((await node.next_request(session))["id"], predictions=[{}])

    assert (await again).json()["checkpoint"]["step"] == 9
    state = (await api.client.get(f"/jobs/{older}")).json()
    assert (state["state"], state["reason"]) == ("cancelled", Reason.CANCEL)


async def test_a_replaced_session_has_the_stop_time_of_the_settings(
    serve: Serve, sqlite_url: str, standing_redis: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stopping, "is_claimed", lambda conn, job: job.state is JobState.RUNNING)
    api = await serve(sqlite_url, redis=standing_redis.url, stop_seconds=7.0)
    job = await trained(api)
    served = await api.db.read(find, "default", job, "latest")
    older = (
        await api.db.write(open_session, served, session_spec(served), now_ms(), stop_seconds=7.0, by=None)
    ).session
    assert older is not None

    def run_and_commit(conn: Connection) -> None:
        for old, new in pairwise((JobState.QUEUED, JobState.STARTING, JobState.RUNNING)):
            jobs.move(
                conn, older.id, to=new, expect=[old], reason=Reason.PLACED, now=now_ms(), next_attempt=1,
                next_fence=Fence(1),
            )  # fmt: skip
        row = checkpoints.of_job(conn, job)[0]
        checkpoints.insert_checkpoint(conn, replace(row, id=new_checkpoint_id(), step=9, no=9))

    await api.db.write(run_and_commit)
    cancelled_after = now_ms()
    waiting = asyncio.create_task(api.client.post(f"/jobs/{job}/predict", json={"inputs": [1], "checkpoint": "latest"}))

    async def stopped() -> JobRow | None:
        row = await api.db.read(jobs.peek, older.id)
        return row if row is not None and row.state is JobState.STOPPING else None

    row = await until_async(stopped, what="the older session stops")
    waiting.cancel()
    assert row is not None
    assert row.stop_deadline is not None
    assert row.stop_deadline <= now_ms() + 7_000
    assert row.stop_deadline >= cancelled_after + 7_000


async def test_adapters_of_one_base_model_share_a_session(api: Api, node: Node) -> None:
    def adapted(rank: int, path: str = "models://base") -> dict[str, Any]:
        model = {"use": "hf/causal-lm", "args": {"path": path, "peft": {"r": rank}}}
        # The seeds may differ, too, because the session loads adapters instead of initializing weights.
        return {"model": model, "data": "data://rows.jsonl", "training": {"seed": rank}}

    first, second, other = [await trained(api, **adapted(2)), await trained(api, **adapted(8)),
                            await trained(api, **adapted(2, "models://another"))]  # fmt: skip
    asking = asyncio.create_task(api.client.post(f"/jobs/{first}/predict", json={"inputs": ["a"]}))
    session = await session_of(node, first)
    request = await node.next_request(session)
    await node.answer(request["id"], predictions=[{}])
    await asking
    shared = asyncio.create_task(api.client.post(f"/jobs/{second}/predict", json={"inputs": ["a"]}))
    offered = await node.next_request(session)
    await node.send_piece(offered["id"], AnswerPieceKind.AGAIN)
    own = await session_of(node, second)
    await node.answer((await node.next_request(own))["id"], predictions=[{}])
    apart = asyncio.create_task(api.client.post(f"/jobs/{other}/predict", json={"inputs": ["a"]}))
    await node.answer((await node.next_request(await session_of(node, other)))["id"], predictions=[{}])

    assert request["adapter"] is None
    assert second in offered["adapter"]["path"]
    assert (await shared).json()["session"] == own
    assert (await apart).status_code == 200
