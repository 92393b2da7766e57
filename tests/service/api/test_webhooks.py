"""Tests webhooks over real sockets.

Each change of a job's state is signed and sent until the receiver accepts it, and never to a forbidden address. The
tests set the clock, and resolve host names by a function because a test has no name server.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import logging
import re
import sys
from base64 import b64decode, b64encode
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from openai import APIStatusError, AsyncOpenAI, DefaultAsyncHttpxClient, NotFoundError
from sqlalchemy import event

from footplate.contract.ids import WebhookId
from footplate.contract.lifecycle import JobState, Reason
from footplate.contract.outbound import Allowed, Refused, addresses_of, read_url
from footplate.contract.resources.operations import CreatedWebhook, DeliveryList, Webhook
from service.control.process import Control
from service.jobs import serving
from service.jobs.prune import DAY_MS, prune
from service.settings import ServiceSettings
from service.store import deliveries, jobs, tables, webhooks
from service.store.row_types import WebhookRow
from service.store.times import now_ms
from service.webhooks import sending
from service.webhooks.deliver import RETRY_DELAYS_SECONDS, WebhookSender
from tests.service.api.conftest import KEY, PATIENCE, SPEC, Api, Serve
from tests.service.api.test_keys import a_key, bearer
from tests.support.pages import paste, snippets
from tests.support.processes import REPOSITORY, free_port, until_async

OK = b"HTTP/1.1 204 No Content\r\n\r\n"
LOOPBACK = "127.0.0.1/32"
Answer = Callable[[asyncio.StreamWriter], Awaitable[None]]


class ReceivedRequest(NamedTuple):
    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def content(self) -> dict[str, Any]:
        content: dict[str, Any] = json.loads(self.body)
        return content

    def is_signed_with(self, secret: str) -> bool:
        """Checks the signature as the specification describes, without Footplate's own code."""
        signed = f"{self.headers['webhook-id']}.{self.headers['webhook-timestamp']}.".encode() + self.body
        key = b64decode(secret.split("_", 1)[1])
        good = b64encode(hmac.new(key, signed, hashlib.sha256).digest()).decode()
        return f"v1,{good}" in self.headers["webhook-signature"].split(" ")


class Receiver:
    """A receiver of webhooks that records all requests and sends the answer that a test sets."""

    def __init__(self) -> None:
        self.requests: list[ReceivedRequest] = []
        self.answer: bytes | Answer = OK
        self.port = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/hook?token=t"

    @property
    def types(self) -> list[str]:
        return [request.content["type"] for request in self.requests]

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            line, *lines = (await reader.readuntil(b"\r\n\r\n")).decode().strip().split("\r\n")
            headers = {name.lower(): value.strip() for name, _, value in (item.partition(":") for item in lines)}
            body = await reader.readexactly(int(headers["content-length"]))
            self.requests.append(ReceivedRequest(line.split()[1], headers, body))
            if callable(self.answer):
                await self.answer(writer)
            else:
                writer.write(self.answer)
                await writer.drain()
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()


@asynccontextmanager
async def receiving() -> AsyncIterator[Receiver]:
    result = Receiver()
    server = await asyncio.start_server(result.serve, "127.0.0.1", 0)
    result.port = server.sockets[0].getsockname()[1]
    try:
        yield result
    finally:
        server.close()


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    async with receiving() as result:
        yield result


class Sender:
    """Runs control's webhook sender step by step with the test's clock.

    The clock is two minutes ahead, so that the real clock never overtakes it on a busy machine.
    """

    def __init__(self, api: Api, allow: str = LOOPBACK, **more: Any) -> None:
        self.now = now_ms() + 120_000
        self.sender = WebhookSender(api.db.read, api.db.write, Allowed.of(allow), clock=lambda: self.now, **more)

    async def send_due(self) -> None:
        """Sends all due deliveries, and waits until their results are stored."""
        self.now = max(self.now, now_ms())
        await self.sender.start_due()
        while self.sender._under_way:
            await self.sender.run_once()
            await self.sender.start_due()

    async def send_due_after(self, seconds: float) -> None:
        self.now += round(seconds * 1000)
        await self.send_due()


async def a_hook(api: Api, url: str, **fields: Any) -> dict[str, Any]:
    answer = await api.client.post("/webhooks", json={"url": url, **fields})
    assert answer.status_code == 201, answer.text
    body: dict[str, Any] = answer.json()
    return body


async def delivery_log(api: Api, hook: dict[str, Any]) -> list[dict[str, Any]]:
    """Returns the entries of the webhook's log, oldest first."""
    answer = await api.client.get(f"/webhooks/{hook['id']}/deliveries")
    DeliveryList.model_validate_json(answer.content)
    result: list[dict[str, Any]] = answer.json()["data"]
    return result[::-1]


async def read_hook(api: Api, hook: dict[str, Any]) -> dict[str, Any]:
    answer = await api.client.get(f"/webhooks/{hook['id']}")
    Webhook.model_validate_json(answer.content)
    body: dict[str, Any] = answer.json()
    return body


@pytest.fixture
async def api(serve: Serve, sqlite_url: str) -> Api:
    return await serve(sqlite_url, webhooks_allow=LOOPBACK)


async def test_each_state_change_of_a_job_is_delivered_once_and_signed(
    serve: Serve, database_url: str, receiver: Receiver
) -> None:
    api = await serve(database_url, webhooks_allow=LOOPBACK)
    hook = await a_hook(api, receiver.url, description="ours")
    job = await api.submit(name="sst2", tags=["nightly"])
    await api.end(job)

    await Sender(api).send_due()

    assert sorted(receiver.types) == ["job.queued", "job.running", "job.starting", "job.succeeded"]
    assert all(
        request.is_signed_with(hook["secret"]) and request.path == "/hook?token=t" for request in receiver.requests
    )
    last = next(request for request in receiver.requests if request.content["type"] == "job.succeeded")
    row = await api.db.read(lambda conn: jobs.get(conn, "default", job))
    assert last.content["data"] == {
        "job": job, "project": "default", "name": "sst2", "tags": ["nightly"], "state": "succeeded",
        "reason": "completed", "message": None, "attempt": 1, "no": row.last_no,
    }  # fmt: skip
    log = await delivery_log(api, hook)
    assert [(delivery["status"], delivery["tries"], delivery["http_status"]) for delivery in log] == [
        ("delivered", 1, 204)
    ] * 4
    assert {delivery["id"] for delivery in log} == {request.headers["webhook-id"] for request in receiver.requests}
    assert [delivery["body"]["data"]["no"] for delivery in log] == [1, 2, 3, 4]
    await Sender(api).send_due()
    assert len(receiver.requests) == 4


async def test_the_secret_of_a_webhook_is_shown_once_and_logs_omit_the_path_of_its_url(
    api: Api, receiver: Receiver, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        hook = await a_hook(api, receiver.url, states=["succeeded"], tags=["a"])
        answer = await api.client.get("/webhooks")
        await api.client.delete(f"/webhooks/{hook['id']}")

    assert len(b64decode(hook["secret"].removeprefix("whsec_"))) == 32
    assert answer.json()["data"] == [{name: value for name, value in hook.items() if name != "secret"}]
    audited = [record.getMessage() for record in caplog.records if record.name == "footplate.audit"]
    assert [line.split(") ")[1] for line in audited] == ["made by None", "deleted by None"]
    assert not any("token" in line or hook["secret"] in line for line in audited)
    assert (await api.client.get(f"/webhooks/{hook['id']}")).status_code == 404


async def test_a_webhook_gets_only_the_states_and_tags_of_its_filter(api: Api, receiver: Receiver) -> None:
    await a_hook(api, receiver.url, states=["succeeded", "failed"], tags=["nightly", "weekly"])
    nightly, other = await api.submit(tags=["nightly", "demo"]), await api.submit(tags=["demo"])
    for job in (nightly, other):
        await api.end(job)

    await Sender(api).send_due()

    assert [(request.content["type"], request.content["data"]["job"]) for request in receiver.requests] == [
        ("job.succeeded", nightly)
    ]


async def test_an_endpoint_of_openais_sdk_receives_the_end_of_jobs(api: Api, receiver: Receiver) -> None:
    http = DefaultAsyncHttpxClient(verify=False)
    client = AsyncOpenAI(base_url=f"{api.url}/v1", api_key="any", max_retries=0, http_client=http)
    event_types: list[Any] = ["fine_tuning.job.succeeded", "fine_tuning.job.failed"]
    endpoint = await client.webhooks.create(event_types=event_types, name="ours", url=receiver.url)
    other = await a_hook(api, receiver.url, states=["queued"])
    job, cancelled = await api.submit(), await api.submit()
    await api.commit(job, 1)
    await api.end(job)
    await api.client.post(f"/jobs/{cancelled}/cancel")
    served = await api.db.read(lambda conn: serving.find(conn, "default", job, None))
    opened = await api.db.write(
        serving.open_session, served, serving.session_spec(served), now_ms(), stop_seconds=60.0, by=None
    )
    assert opened.session is not None
    await api.end(opened.session.id)

    await Sender(api).send_due()

    [end] = [request for request in receiver.requests if request.content["type"].startswith("fine_tuning")]
    event = client.webhooks.unwrap(end.body, end.headers, secret=endpoint.signing_secret)
    assert (event.type, event.id) == ("fine_tuning.job.succeeded", end.headers["webhook-id"])
    assert event.data.id == job
    newer = await client.webhooks.create(event_types=event_types, name="newer", url=receiver.url)
    assert [item.id async for item in client.webhooks.list(limit=1)] == [newer.id, endpoint.id]
    changed = await client.webhooks.update(endpoint.id, event_types=["fine_tuning.job.cancelled"])
    assert changed.event_types == ["fine_tuning.job.cancelled"]
    tested = await client.webhooks.test(endpoint.id, event_type="fine_tuning.job.failed")
    sample = client.webhooks.unwrap(
        receiver.requests[-1].body, receiver.requests[-1].headers, secret=endpoint.signing_secret
    )
    assert (tested.status_code, sample.type) == (204, "fine_tuning.job.failed")
    await client.webhooks.update(endpoint.id, url="http://127.0.0.1:1/")
    with pytest.raises(APIStatusError) as unanswered:
        await client.webhooks.test(endpoint.id, event_type="fine_tuning.job.failed")
    assert (unanswered.value.status_code, unanswered.value.code) == (424, "webhook_not_answered")
    assert (await client.webhooks.retrieve(endpoint.id)).name == "ours"
    await client.webhooks.update(endpoint.id, url=receiver.url)
    rotated = await client.webhooks.rotate_secret(endpoint.id, keep_old_secret_active_for_24_hours=True)
    await client.webhooks.test(endpoint.id, event_type="fine_tuning.job.failed")
    for secret in (endpoint.signing_secret, rotated.signing_secret):
        client.webhooks.unwrap(receiver.requests[-1].body, receiver.requests[-1].headers, secret=secret)
    assert (await client.webhooks.rotate_secret(endpoint.id)).signing_secret != rotated.signing_secret
    with pytest.raises(NotFoundError):
        await client.webhooks.retrieve(other["id"])
    assert (await client.webhooks.delete(endpoint.id)).deleted


async def test_a_state_change_that_is_rolled_back_or_refused_is_not_delivered(both: Api) -> None:
    await both.db.write(lambda conn: webhooks.insert_webhook(conn, a_row(), 1))
    await both.services.webhooks.refresh()
    job = await both.submit()
    before = len(await log_of(both))

    def move(conn: Any, expect: JobState, to: JobState) -> bool:
        return jobs.move(conn, job, to=to, expect=[expect], reason=Reason.PLACED, now=now_ms())

    def torn(conn: Any) -> None:
        assert move(conn, JobState.QUEUED, JobState.STARTING)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await both.db.write(torn)
    assert not await both.db.write(lambda conn: move(conn, JobState.STARTING, JobState.RUNNING))

    assert (before, len(await log_of(both))) == (1, 1)
    assert await both.db.write(lambda conn: move(conn, JobState.QUEUED, JobState.STARTING))
    assert len(await log_of(both)) == 2


def a_row(id: str = "hook_" + "1" * 32, **more: Any) -> WebhookRow:
    row = WebhookRow(
        WebhookId(id), "default", "http://127.0.0.1:1/", sending.make_secret(), None, None, None, 1, None,
        None, None, None,
    )  # fmt: skip
    return replace(row, **more)


async def log_of(api: Api) -> list[Any]:
    return await api.db.read(lambda conn: deliveries.log(conn, WebhookId("hook_" + "1" * 32), 100))


async def test_without_a_webhook_in_the_project_a_post_reads_no_webhooks(
    api: Api, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*_: Any) -> None:
        raise AssertionError("the webhooks were read")

    hook = await a_hook(api, receiver.url)
    await api.client.patch(f"/webhooks/{hook['id']}", json={"enabled": False})
    monkeypatch.setattr(webhooks, "write_deliveries", never)

    await api.end(await api.submit())

    await api.client.patch(f"/webhooks/{hook['id']}", json={"enabled": True})
    assert (await api.client.post("/jobs", json=SPEC)).status_code == 500


async def test_another_api_process_uses_a_new_webhook_within_seconds(
    serve: Serve, sqlite_url: str, receiver: Receiver
) -> None:
    first, other = await serve(sqlite_url, webhooks_allow=LOOPBACK), await serve(sqlite_url)
    assert not other.services.webhooks.may_have_webhook("default")

    await a_hook(first, receiver.url)

    await until_async(
        lambda: other.services.webhooks.may_have_webhook("default"),
        within=5,
        what="the other process knows the webhook",
    )
    assert not other.services.webhooks.may_have_webhook("vision")


async def test_a_webhook_of_another_project_receives_nothing_and_is_not_found(
    serve: Serve, sqlite_url: str, receiver: Receiver
) -> None:
    api = await serve(sqlite_url, api_key=KEY, webhooks_allow=LOOPBACK)
    vision, speech = bearer(await a_key(api, "vision")), bearer(await a_key(api, "speech"))
    answer = await api.client.post("/webhooks", json={"url": receiver.url}, headers=speech)
    path = answer.headers["location"]

    await api.client.post("/jobs", json=SPEC, headers=vision)
    await Sender(api).send_due()

    assert receiver.requests == []
    assert (await api.client.get("/webhooks", headers=vision)).json()["data"] == []
    for method, at, body in (
        ("GET", path, None), ("GET", f"{path}/deliveries", None), ("POST", f"{path}/test", None),
        ("PATCH", path, {"enabled": False}), ("POST", f"{path}/rotate", {}), ("DELETE", path, None),
    ):  # fmt: skip
        assert (await api.client.request(method, at, headers=vision, json=body)).status_code == 404, (method, at)
    reader = bearer(await a_key(api, "speech", ["read", "submit", "code"]))
    assert (await api.client.get(path, headers=reader)).status_code == 403
    assert (await api.client.get(path, headers=speech)).json()["enabled"] is True


async def test_a_failing_delivery_is_retried_for_a_day_and_then_counts_as_failed(api: Api, receiver: Receiver) -> None:
    receiver.answer = b"HTTP/1.1 500 Oh\r\nContent-Length: 4\r\n\r\nno\x1b!"
    hook, post = await a_hook(api, receiver.url, states=["queued"]), Sender(api)
    await api.submit()
    await post.send_due()
    first = (await delivery_log(api, hook))[0]

    for seconds in RETRY_DELAYS_SECONDS:
        assert (await delivery_log(api, hook))[0]["status"] == "pending"
        tries = len(receiver.requests)
        await post.send_due_after(seconds - 1)
        assert len(receiver.requests) == tries, "a retry must not be sent early"
        await post.send_due_after(1.5)
        assert len(receiver.requests) == tries + 1

    assert (first["error"], first["answer"]) == ("the receiver answered 500, and only 2xx is a success", "no !")
    assert first["next_try_at"] is not None
    assert len({request.headers["webhook-id"] for request in receiver.requests}) == 1
    assert len({request.headers["webhook-timestamp"] for request in receiver.requests}) == len(RETRY_DELAYS_SECONDS) + 1
    assert all(request.is_signed_with(hook["secret"]) for request in receiver.requests)
    (last,) = await delivery_log(api, hook)
    assert (last["status"], last["tries"], last["next_try_at"]) == ("failed", 8, None)
    assert (await read_hook(api, hook))["failing_since"] is not None
    receiver.answer = OK
    await api.client.post(f"/webhooks/{hook['id']}/test")
    await post.send_due()
    assert (await read_hook(api, hook))["failing_since"] is None


@pytest.mark.own_statement
async def test_a_webhook_that_fails_for_days_is_disabled_with_a_reason(
    serve: Serve, database_url: str, receiver: Receiver
) -> None:
    api = await serve(database_url, webhooks_allow=LOOPBACK)
    receiver.answer = b"HTTP/1.1 503 Away\r\n\r\n"
    hook, post = await a_hook(api, receiver.url, states=["queued"]), Sender(api)
    await api.submit()
    await post.send_due()
    await api.submit()

    await post.send_due_after(5 * 24 * 3600 + 1)

    now = await read_hook(api, hook)
    assert (now["enabled"], now["disabled_why"]) == (False, f"every delivery since {now['failing_since']} has failed")
    assert {message["status"] for message in await delivery_log(api, hook)} == {"failed"}
    assert (await api.client.post(f"/webhooks/{hook['id']}/test")).json()["code"] == "webhook_disabled"
    await api.submit()
    assert len(await delivery_log(api, hook)) == 2, "a disabled webhook must get no delivery"
    again = await api.client.patch(f"/webhooks/{hook['id']}", json={"enabled": True})
    assert (again.json()["enabled"], again.json()["failing_since"]) == (True, None)


@pytest.mark.own_statement
async def test_a_failing_webhook_is_tried_rarely_and_gets_its_backlog_after_it_recovers(
    serve: Serve, database_url: str, receiver: Receiver
) -> None:
    api = await serve(database_url, webhooks_allow=LOOPBACK)
    receiver.answer = b"HTTP/1.1 503 Away\r\n\r\n"
    hook, post = await a_hook(api, receiver.url, states=["queued"]), Sender(api)
    await api.submit()
    await post.send_due()
    for _ in range(6):
        await api.submit()

    await post.send_due_after(deliveries.REST_SECONDS - 1)
    assert len(receiver.requests) == 1, "nothing must be sent during the rest after a failure"
    await post.send_due_after(1.5)
    assert len(receiver.requests) == 2, "only one of the due deliveries must be sent to a failing webhook"
    await post.send_due_after(deliveries.REST_SECONDS)
    assert len({request.headers["webhook-id"] for request in receiver.requests}) == 3, (
        "a delivery that was never tried must be sent before one that failed"
    )

    receiver.answer = OK
    await post.send_due_after(deliveries.REST_SECONDS)
    await post.send_due_after(3600)
    assert {message["status"] for message in await delivery_log(api, hook)} == {"delivered"}
    assert (await read_hook(api, hook))["failing_since"] is None


async def test_a_failing_webhook_with_too_many_waiting_deliveries_is_disabled(
    serve: Serve, database_url: str, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deliveries, "MOST_WAITING", 3)
    api = await serve(database_url, webhooks_allow=LOOPBACK)
    receiver.answer = b"HTTP/1.1 503 Away\r\n\r\n"
    hook, post = await a_hook(api, receiver.url, states=["queued"]), Sender(api)
    for _ in range(3):
        await api.submit()
    await post.send_due()
    assert (await read_hook(api, hook))["enabled"]

    await api.submit()
    await post.send_due_after(deliveries.REST_SECONDS + 1)

    now = await read_hook(api, hook)
    why = f"every delivery since {now['failing_since']} has failed, and more than 3 deliveries waited"
    assert (now["enabled"], now["disabled_why"]) == (False, why)
    assert {message["status"] for message in await delivery_log(api, hook)} == {"failed"}


@pytest.mark.own_statement
async def test_unreachable_receivers_do_not_delay_the_others(both: Api) -> None:
    def fill(conn: Any) -> None:
        for number in range(6):
            row = a_row(f"hook_{number:032x}", created_at=1000)
            webhooks.insert_webhook(conn, row, 9)
            for _ in range(6):
                webhooks.ping(conn, row, 1000)
            if number < 4:
                table = tables.webhooks
                changes = {"failing_since": 1000, "rests_until": 4000 - number}
                conn.execute(table.update().where(table.c.id == row.id).values(**changes))

    await both.db.write(fill)

    def owners(most: int, most_failing: int, now: int = 10**6) -> Any:
        return both.db.read(
            lambda conn: [int(delivery.webhook_id[-1]) for delivery in deliveries.due(conn, now, most, most_failing)]
        )

    assert await owners(32, 2) == [*[4, 5] * 4, 3, 2], "some of each webhook in turn, then of the longest rested"
    assert await owners(3, 2) == [4, 5, 4]
    assert await owners(32, 2, now=3997) == [*[4, 5] * 4, 3], "a webhook that has just failed must rest"
    assert await owners(32, 2, now=999) == []


async def test_finding_due_deliveries_reads_few_rows_however_many_wait(api: Api) -> None:
    """The query plan uses only the index in this order, and lookups by id."""

    def look(conn: Any) -> list[str]:
        result: list[str] = []

        @event.listens_for(conn, "before_cursor_execute")
        def explain(conn: Any, cursor: Any, statement: str, parameters: Any, *_: Any) -> None:
            if statement.startswith("SELECT"):
                result.extend(
                    row[3] for row in cursor.connection.execute(f"EXPLAIN QUERY PLAN {statement}", parameters)
                )

        webhooks.insert_webhook(conn, a_row(), 1)
        webhooks.ping(conn, a_row(), 1)
        assert len(deliveries.due(conn, now_ms(), 32, 16)) == 1
        return result

    steps = [step for step in await api.db.write(look) if "deliveries" in step]

    assert {step.split(" (")[0] for step in steps} == {
        "SEARCH deliveries USING COVERING INDEX ix_deliveries_next",
        "SEARCH deliveries USING INDEX sqlite_autoindex_deliveries_1",
    }
    assert not [step for step in steps if "B-TREE" in step]


async def test_the_url_and_the_filters_of_a_webhook_can_be_changed(api: Api, receiver: Receiver) -> None:
    async def change(**changes: Any) -> dict[str, Any]:
        answer = await api.client.patch(f"/webhooks/{hook['id']}", json=changes)
        assert answer.status_code == 200, answer.text
        Webhook.model_validate_json(answer.content)
        return {**answer.json()}

    async with receiving() as away:
        hook, post = await a_hook(api, away.url, states=["queued"], tags=["a"], description="ours"), Sender(api)
    job = await api.submit(tags=["a"])
    await post.send_due()
    assert (await read_hook(api, hook))["failing_since"] is not None

    moved = await change(url=receiver.url, states=["succeeded"], tags=None)
    await post.send_due_after(6)

    assert (moved["url"], moved["states"], moved["tags"], moved["description"]) == (
        receiver.url, ["succeeded"], None, "ours",
    )  # fmt: skip
    assert moved["failing_since"] is None, "the new address has not failed yet"
    assert receiver.types == ["job.queued"], "waiting deliveries must be sent to the new address"
    assert await change() == await read_hook(api, hook), "an empty change must change nothing"
    await api.end(job)
    await post.send_due()
    assert receiver.types == ["job.queued", "job.succeeded"]
    assert (await change(states=None, enabled=False))["disabled_why"] == "by hand"
    bad = await api.client.patch(f"/webhooks/{hook['id']}", json={"url": "https://10.0.0.1/", "description": "lost"})
    assert (bad.status_code, bad.json()["errors"][0]["pointer"]) == (422, "/url")
    assert (await read_hook(api, hook))["description"] == "ours"


async def test_after_a_rotation_the_old_secret_also_signs_until_its_end(
    api: Api, receiver: Receiver, caplog: pytest.LogCaptureFixture
) -> None:
    async def rotate(**how: Any) -> dict[str, Any]:
        answer = await api.client.post(f"/webhooks/{hook['id']}/rotate", json=how)
        CreatedWebhook.model_validate_json(answer.content)
        return {**answer.json()}

    async def good(*secrets: str) -> list[bool]:
        await api.submit()
        await post.send_due()
        return [receiver.requests[-1].is_signed_with(secret) for secret in secrets]

    hook, post = await a_hook(api, receiver.url, states=["queued"]), Sender(api)
    first = hook["secret"]
    with caplog.at_level(logging.INFO):
        changed = await rotate(overlap="2h")
    second = changed["secret"]

    assert await good(first, second) == [True, True]
    assert changed["old_secret_until"] is not None
    await post.send_due_after(2 * 3600 + 1)
    assert await good(first, second) == [False, True]
    leaked = await rotate(overlap=0)
    assert (await good(second, leaked["secret"]), leaked["old_secret_until"]) == ([False, True], None)
    assert "secret" not in await read_hook(api, hook)
    assert re.search(f"{hook['id']}.*given a new secret by", caplog.text)
    assert second not in caplog.text


async def test_a_webhook_whose_receiver_answers_410_is_disabled_at_once(api: Api, receiver: Receiver) -> None:
    receiver.answer = b"HTTP/1.1 410 Gone\r\n\r\n"
    hook, post = await a_hook(api, receiver.url), Sender(api)
    ping = await api.client.post(f"/webhooks/{hook['id']}/test")

    await post.send_due()
    await api.submit()
    await post.send_due_after(3600)

    assert (ping.status_code, ping.json()["status"], receiver.types) == (202, "pending", ["ping"])
    assert [(message["type"], message["status"]) for message in await delivery_log(api, hook)] == [("ping", "failed")]
    assert (await read_hook(api, hook))["disabled_why"] == "the receiver answered 410 Gone"


async def test_a_delivery_whose_control_died_is_sent_again_by_the_next_control(api: Api, receiver: Receiver) -> None:
    hook = await a_hook(api, receiver.url, states=["queued"])
    await api.submit()
    dying = Sender(api)
    await dying.sender.start_due()
    await until_async(lambda: receiver.requests, within=30, what="the first control has sent the delivery")
    await dying.sender.stop()
    assert (await delivery_log(api, hook))[0]["tries"] == 0

    await Sender(api).send_due()

    first, second = receiver.requests
    assert first.headers["webhook-id"] == second.headers["webhook-id"]
    assert [(message["status"], message["tries"]) for message in await delivery_log(api, hook)] == [("delivered", 1)]


async def test_a_delivery_that_was_sent_twice_is_counted_once(api: Api, receiver: Receiver) -> None:
    receiver.answer = b"HTTP/1.1 500 Oh\r\n\r\n"
    hook = await a_hook(api, receiver.url, states=["queued"])
    await api.submit()
    frozen, next_one = Sender(api), Sender(api)
    await frozen.sender.start_due()
    await next_one.send_due()

    await frozen.send_due()

    assert [message["tries"] for message in await delivery_log(api, hook)] == [1]


async def test_a_receiver_that_hangs_delays_no_other_webhook(
    api: Api, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sending, "TOTAL_SECONDS", 600)
    cut, never = asyncio.Event(), asyncio.Event()

    async def hang(_: asyncio.StreamWriter) -> None:
        await (never if cut.is_set() else cut).wait()

    async with receiving() as hanging:
        hanging.answer = hang
        stuck = await a_hook(api, hanging.url, states=["queued"])
        await a_hook(api, receiver.url, states=["queued"])
        for _ in range(6):
            await api.submit()
        post = Sender(api)
        await post.sender.start_due()
        while len(receiver.requests) < 6:
            await post.sender.run_once()
        assert not [message for message in await delivery_log(api, stuck) if message["tries"]], (
            "the other was done while this one hung"
        )
        cut.set()
        await post.send_due()
        monkeypatch.setattr(sending, "TOTAL_SECONDS", 0.2)
        await post.send_due_after(deliveries.REST_SECONDS + 1)

        errors = [message["error"] for message in await delivery_log(api, stuck) if message["tries"]]
        assert len(hanging.requests) == deliveries.AT_ONCE + 1
        assert "0.2 s" in errors[-1]
        never.set()


async def test_a_redirect_is_not_followed_and_counts_as_a_failed_delivery(api: Api, receiver: Receiver) -> None:
    async with receiving() as inside:
        receiver.answer = f"HTTP/1.1 307 There\r\nLocation: {inside.url}\r\nContent-Length: 0\r\n\r\n".encode()
        hook = await a_hook(api, receiver.url, states=["queued"])
        await api.submit()

        await Sender(api).send_due()

        assert (len(receiver.requests), inside.requests) == (1, [])
        assert "Redirects are not followed" in (await delivery_log(api, hook))[0]["error"]


async def test_only_the_beginning_of_a_huge_answer_is_read(api: Api, receiver: Receiver) -> None:
    sent_bytes = 0

    async def flood(writer: asyncio.StreamWriter) -> None:
        nonlocal sent_bytes
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100000000\r\n\r\n")
        for _ in range(1526):
            writer.write(b"\xff<b>" * 16384)
            await writer.drain()
            sent_bytes += 65536

    receiver.answer = flood
    hook = await a_hook(api, receiver.url, states=["queued"])
    await api.submit()

    await Sender(api).send_due()

    (message,) = await delivery_log(api, hook)
    assert (message["status"], len(message["answer"])) == ("delivered", 500)
    assert sent_bytes < 50_000_000, "most of the answer must not be read"


async def test_a_delivery_with_a_success_status_counts_even_if_the_body_never_ends(
    api: Api, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sending, "BODY_SECONDS", 0.2)
    never = asyncio.Event()

    async def drip(writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nthanks")
        await never.wait()

    receiver.answer = drip
    hook = await a_hook(api, receiver.url, states=["queued"])
    await api.submit()

    await Sender(api).send_due()

    (message,) = await delivery_log(api, hook)
    assert (message["status"], message["answer"]) == ("delivered", "thanks")
    never.set()


@pytest.mark.parametrize(
    ("answer", "why"),
    [(b"", "no answer: "), (b"\0\0\0\0 nonsense\r\n\r\n", "no answer: "), (b"HTTP/1.1 302 x\r\n\r\n", "Redirect")],
)
async def test_a_missing_answer_is_reported_with_its_reason(
    api: Api, receiver: Receiver, answer: bytes, why: str
) -> None:
    receiver.answer = answer
    hook = await a_hook(api, receiver.url, states=["queued"])
    await api.submit()

    await Sender(api).send_due()

    (message,) = await delivery_log(api, hook)
    assert message["status"] == "pending"
    assert why in message["error"]


NAMES = {
    "public.example": ["93.184.216.34", "2606:2800:220:1::1"], "private.example": ["93.184.216.34", "10.0.0.7"],
    "none.example": [],
}  # fmt: skip


def names(host: str, port: int) -> list[str]:
    return NAMES[host] if host in NAMES else addresses_of(host, port)


@pytest.mark.parametrize(
    ("url", "why"),
    [
        *[
            (f"https://{host}/", "not a public address")
            for host in (
                "127.0.0.1", "localhost", "2130706433", "0x7f.1", "017700000001", "127.1", "0.0.0.0", "0", "10.1.2.3",
                "172.16.0.1", "192.168.1.1", "169.254.169.254", "100.100.100.200", "168.63.129.16", "224.0.0.1",
                "255.255.255.255", "[::1]", "[::]", "[::ffff:127.0.0.1]", "[::ffff:a00:1]", "[fe80::1]",
                "[ff02::1]", "[64:ff9b::7f00:1]", "[2002:7f00:1::]", "[2001:0:7f00:1::]", "[::127.0.0.1]",
                "[fd00:ec2::254]", "private.example", "127.0.0.1.", "LOCALHOST",
            )
        ],
        ("http://public.example/", "must begin with https://"),
        ("https://none.example/", "has no address"),
        ("https://user:pw@public.example/", "contains a user name or password"),
        ("https://public.example@127.0.0.1/", "contains a user name or password"),
        ("https://public.example\\@127.0.0.1/", "printable ASCII"),
        ("https://public.example/#there", "has a fragment"),
        ("https:///path", "names no host"),
        ("https://public.example:99999/", "cannot be read"),
        ("https://[::1/", "cannot be read"),
    ],
)  # fmt: skip
async def test_urls_that_a_webhook_may_not_reach_are_refused(
    monkeypatch: pytest.MonkeyPatch, url: str, why: str
) -> None:
    monkeypatch.setattr(sending, "addresses_of", names)

    with pytest.raises(Refused, match=re.escape(why)):
        await sending.aim(read_url(url), Allowed())


async def test_a_refused_webhook_url_is_named_with_what_would_work(
    serve: Serve, sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sending, "addresses_of", names)
    api = await serve(sqlite_url)

    good = await api.client.post("/webhooks", json={"url": "https://public.example/x"})
    bad = await api.client.post("/webhooks", json={"url": "https://169.254.169.254/latest/meta-data"})
    worse = await api.client.post("/webhooks", json={"url": "file:///etc/passwd", "states": [], "tag": "a"})

    assert good.status_code == 201
    (problem,) = bad.json()["errors"]
    assert (bad.status_code, problem["pointer"], problem["code"]) == (422, "/url", "not_reachable")
    assert "FOOTPLATE_WEBHOOKS_ALLOW" in problem["hint"]
    assert {error["pointer"] for error in worse.json()["errors"]} == {"/url", "/states", "/tag"}


async def test_a_host_that_resolves_to_a_forbidden_address_later_gets_no_delivery(api: Api, receiver: Receiver) -> None:
    """DNS rebinding: the host had a public address when the webhook was made, and has a private one now."""
    meant = {"hooks.example": ["127.0.0.1"]}
    hosts: list[str] = []

    async def resolve(host: str, port: int) -> list[str]:
        hosts.append(host)
        return meant[host]

    hook = await a_hook(api, receiver.url, states=["queued"])
    await repoint(api, hook, f"http://hooks.example:{receiver.port}/")
    await api.submit()
    strict, open_ = Sender(api, "10.9.9.0/24", resolve=resolve), Sender(api, "hooks.example", resolve=resolve)

    await strict.send_due()

    assert receiver.requests == []
    why = "not sent: the URL names hooks.example, which is 127.0.0.1: not a public address"
    assert (await delivery_log(api, hook))[0]["error"] == why
    await open_.send_due_after(6)
    (delivery,) = receiver.requests
    assert delivery.headers["host"] == f"hooks.example:{receiver.port}"
    assert hosts == ["hooks.example"] * 2, "each try must resolve the host only once, and use the checked address"


async def repoint(api: Api, hook: dict[str, Any], url: str) -> None:
    table = tables.webhooks
    await api.db.write(lambda conn: conn.execute(table.update().where(table.c.id == hook["id"]).values(url=url)))


async def test_a_certificate_must_be_valid_for_the_host_name(
    api: Api, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    import ssl

    process = await asyncio.create_subprocess_exec(
        "openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2",
        "-keyout", tmp_path / "key.pem", "-out", tmp_path / "cert.pem", "-subj", "/CN=hooks.example",
        "-addext", "subjectAltName=DNS:hooks.example", stderr=asyncio.subprocess.DEVNULL,
    )  # fmt: skip
    assert await process.wait() == 0
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(tmp_path / "cert.pem", tmp_path / "key.pem")
    trust = ssl.create_default_context(cafile=tmp_path / "cert.pem")
    monkeypatch.setattr(sending, "_trust", lambda: trust)

    async def resolve(host: str, port: int) -> list[str]:
        return ["127.0.0.1"]

    secure = Receiver()
    server = await asyncio.start_server(secure.serve, "127.0.0.1", 0, ssl=context)
    port = server.sockets[0].getsockname()[1]
    hook = await a_hook(api, f"https://127.0.0.1:{port}/", states=["queued"])
    post = Sender(api, resolve=resolve)
    for name in ("hooks.example", "other.example"):
        await repoint(api, hook, f"https://{name}:{port}/")
        await api.submit()
        await post.send_due()

    good, bad = await delivery_log(api, hook)
    server.close()
    assert (good["status"], len(secure.requests)) == ("delivered", 1)
    assert "certificate" in bad["error"].lower()


async def test_control_sends_deliveries_without_redis(api: Api, receiver: Receiver) -> None:
    control = Control(api.db, api.services.settings)
    running = asyncio.create_task(control.run())
    hook = await a_hook(api, receiver.url, states=["queued"])
    job = await api.submit()

    await until_async(lambda: receiver.requests, within=30, what="control sends the delivery")
    await until_async(
        lambda: control._state.counts and control._state.numbers()["webhooks_delivered"],
        within=30,
        what="the delivery is counted",
    )

    assert receiver.requests[0].content["data"]["job"] == job
    assert (await delivery_log(api, hook))[0]["status"] == "delivered"
    await control.close()
    await running


async def test_a_project_has_a_limit_of_webhooks(api: Api, receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("service.api.webhooks.MOST", 1)
    await a_hook(api, receiver.url)

    answer = await api.client.post("/webhooks", json={"url": receiver.url})

    assert (answer.status_code, answer.json()["code"]) == (409, "too_many_webhooks")


@pytest.mark.own_statement
async def test_the_delivery_log_is_paged_and_kept_for_a_month(both: Api) -> None:
    row = a_row()
    await both.db.write(lambda conn: webhooks.insert_webhook(conn, row, 1))
    for _ in range(5):
        await both.db.write(lambda conn: webhooks.ping(conn, row, now_ms()))
    path = f"/webhooks/{row.id}/deliveries"
    result = [delivery["id"] for delivery in await both.pages(path, limit=2)]

    assert (len(result), result) == (5, sorted(result, reverse=True))
    assert (await both.client.get(path + "?cursor=x")).status_code == 422
    await both.db.write(lambda conn: prune(conn, now_ms() + 29 * DAY_MS))
    assert len(await log_of(both)) == 5
    await both.db.write(lambda conn: prune(conn, now_ms() + 31 * DAY_MS))
    assert await log_of(both) == []


@pytest.mark.parametrize("text", ["10.0.0.0/33", "300.1.1.1", "10.0.0.1/8", "::g"])
def test_a_wrong_network_in_the_settings_stops_the_start(text: str) -> None:
    with pytest.raises(ValueError, match=re.escape(text)):
        ServiceSettings(webhooks_allow=text)


@pytest.mark.matrix
async def test_the_shell_snippets_of_the_docs_create_show_and_try_a_webhook(api: Api, tmp_path: Path) -> None:
    address = f"http://127.0.0.1:{free_port()}/footplate"
    commands = [
        command.replace("localhost:8080", api.url).replace("https://hooks.example.com/footplate", address)
        for command in snippets("guides/webhooks.md")
    ]

    output = await asyncio.to_thread(paste, commands, tmp_path, api.url)

    assert '"secret":"whsec_' in output
    assert output.count(address) >= 2
    assert "ping" in output


async def test_the_receiver_in_the_docs_accepts_only_correctly_signed_requests(api: Api) -> None:
    page = (REPOSITORY / "docs/guides/webhooks.md").read_text()
    (code,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    port = free_port()
    hook = await a_hook(api, f"http://127.0.0.1:{port}/", states=["queued"])
    example = await asyncio.create_subprocess_exec(
        sys.executable, "-c", code.replace("8000", str(port)), env={"WEBHOOK_SECRET": hook["secret"]},
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL,
    )  # fmt: skip
    try:
        await until_async(lambda: connects(port), within=30, what="the receiver of the docs listens")
        job = await api.submit()
        post = Sender(api)
        await post.send_due()
        assert example.stdout
        line = (await asyncio.wait_for(example.stdout.readline(), PATIENCE)).decode()
        assert job in line
        (message,) = await delivery_log(api, hook)
        assert line.split()[0] == message["id"]
        table = tables.webhooks
        await api.db.write(lambda conn: conn.execute(table.update().values(secret=sending.make_secret())))
        await api.submit()
        await post.send_due()
        assert [item["http_status"] for item in await delivery_log(api, hook)] == [204, 401]
    finally:
        example.kill()
        await example.wait()


async def connects(port: int) -> bool:
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
    except OSError:
        return False
    writer.close()
    return True
