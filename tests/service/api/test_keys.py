"""Tests keys: what each key may read and do, and how keys are created, limited and deleted."""

from __future__ import annotations

import asyncio
import json
import logging
import sys
from contextlib import suppress
from typing import Any

import httpx2
import pytest
from websockets.exceptions import ConnectionClosed

from footplate.contract.ids import JobId
from service.auth import LOCAL
from service.problems import TooManyRequests
from service.rate_limit import BURST_SECONDS, AddressLimits, Quota, network_of
from service.redaction import Redacting
from service.store import jobs, keys
from service.store.times import now_ms
from tests.service.api.conftest import KEY, PATIENCE, SPEC, Api, Serve, rest
from tests.service.api.test_system import a_node
from tests.support.processes import until_async

EVERYTHING = ["read", "submit", "code", "admin"]


async def a_key(api: Api, project: str = "vision", scopes: list[str] = EVERYTHING, **more: Any) -> dict[str, Any]:
    """Creates a key as the operator, and returns the answer, which includes the secret `key`."""
    settings = {"name": f"of {project}", "project": project, "scopes": scopes, **more}
    answer = await api.client.post("/keys", json=settings)
    assert answer.status_code == 201, answer.text
    body: dict[str, Any] = answer.json()
    return body


def bearer(key: dict[str, Any] | str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key if isinstance(key, str) else key['key']}"}


@pytest.fixture
async def guarded(serve: Serve, sqlite_url: str) -> Api:
    """Returns an API whose client uses the operator's bootstrap key."""
    return await serve(sqlite_url, api_key=KEY)


async def test_a_key_is_shown_once_and_kept_as_a_hash(serve: Serve, database_url: str) -> None:
    api = await serve(database_url, api_key=KEY)

    new_key = await a_key(api, scopes=["read"], expires_in="90d")

    assert new_key["key"].startswith(new_key["prefix"] + "_")
    assert len(new_key["key"]) == len(new_key["prefix"]) + 1 + 64, "the secret part must have 256 bits"
    answer = await api.client.get("/keys")
    assert new_key["key"] not in answer.text
    assert answer.json()["data"] == [{name: value for name, value in new_key.items() if name != "key"}]
    (row,) = await api.db.read(keys.all_keys)
    assert new_key["key"].removeprefix(new_key["prefix"]) not in str(row)
    assert (new_key["created_by"], new_key["last_used_at"]) == ("the bootstrap key", None)


@pytest.mark.parametrize(
    ("project", "scopes", "allowed", "actions"),
    [
        ("vision", ["read"], ["read"], []),
        ("vision", ["admin"], ["read", "submit", "code", "admin"], []),
        ("*", ["read", "submit"], ["read", "submit"], []),
        ("*", ["admin"], ["read", "submit", "code", "admin"], ["drain"]),
    ],
)
async def test_lists_say_what_their_reader_may_do(
    project: str, scopes: list[str], allowed: list[str], actions: list[str], guarded: Api
) -> None:
    await a_node(guarded)
    headers = bearer(await a_key(guarded, project, scopes))

    page, nodes = [(await guarded.client.get(path, headers=headers)).json() for path in ("/jobs", "/nodes")]

    assert (page["scopes"], nodes["data"][0]["actions"]) == (allowed, actions)


async def test_a_key_sees_its_own_project_and_no_other(serve: Serve, database_url: str) -> None:
    api = await serve(database_url, api_key=KEY)
    vision, speech = await a_key(api, "vision"), await a_key(api, "speech")

    answer = await api.client.post("/jobs", json=SPEC, headers=bearer(vision))

    assert answer.json()["project"] == "vision", "the key's project must be filled in"
    assert answer.headers["location"] == f"/jobs/{answer.json()['id']}"
    path = answer.headers["location"]
    mine, theirs = [await api.client.get("/jobs", headers=bearer(item)) for item in (vision, speech)]
    assert [job["id"] for job in mine.json()["data"]] == [answer.json()["id"]]
    assert (theirs.json()["data"], theirs.json()["total_estimate"], theirs.json()["project"]) == ([], 0, "speech")
    assert (await api.client.get(path, headers=bearer(vision))).status_code == 200
    assert (await api.client.get(path, headers=bearer(speech))).status_code == 404
    assert (await api.client.get(path)).status_code == 404, "the operator must name the project"
    assert (await api.client.get(f"{path}?project=vision")).status_code == 200


async def test_a_request_for_another_project_gets_the_name_of_the_keys_project(guarded: Api) -> None:
    vision = await a_key(guarded, "vision")

    answer = await guarded.client.get("/jobs?project=speech", headers=bearer(vision))
    submitted = await guarded.client.post("/jobs", json={**SPEC, "project": "speech"}, headers=bearer(vision))
    agreed = await guarded.client.get("/jobs?project=vision", headers=bearer(vision))

    assert (answer.status_code, "'vision'" in answer.json()["detail"]) == (403, True)
    assert (submitted.status_code, submitted.json()["errors"][0]["pointer"]) == (422, "/project")
    assert agreed.status_code == 200


async def test_the_operator_submits_to_any_project_by_spec_or_query(guarded: Api) -> None:
    by_spec = await guarded.client.post("/jobs", json={**SPEC, "project": "vision"})
    by_query = await guarded.client.post("/jobs?project=vision", json=SPEC)
    neither = await guarded.client.post("/jobs", json=SPEC)
    torn = await guarded.client.post("/jobs?project=vision", json={**SPEC, "project": "speech"})

    assert [answer.json()["project"] for answer in (by_spec, by_query, neither)] == ["vision", "vision", "default"]
    assert (await guarded.client.get(by_spec.headers["location"])).status_code == 200
    assert torn.status_code == 422
    assert (await guarded.client.get("/jobs?project=a%00b")).status_code == 422


async def test_a_project_administrator_makes_keys_of_that_project_only(guarded: Api) -> None:
    admin = bearer(await a_key(guarded, "vision", ["admin"]))
    foreign = await a_key(guarded, "speech")
    ask = guarded.client

    for project in ("speech", "*"):
        refusal = await ask.post("/keys", json={"name": "x", "project": project}, headers=admin)
        assert (refusal.status_code, refusal.json()["errors"][0]["pointer"]) == (422, "/project")
    mine = await ask.post("/keys", json={"name": "x", "project": "vision"}, headers=admin)
    assert (mine.status_code, mine.json()["scopes"]) == (201, ["read", "submit"])
    assert {key["project"] for key in (await ask.get("/keys", headers=admin)).json()["data"]} == {"vision"}
    assert (await ask.delete(f"/keys/{foreign['id']}", headers=admin)).status_code == 404
    assert (await ask.delete(f"/keys/{mine.json()['id']}", headers=admin)).status_code == 204
    assert len((await ask.get("/keys")).json()["data"]) == 2


@pytest.mark.parametrize(
    ("body", "pointer"),
    [
        ({"name": "x", "project": "a/b"}, "/project"),
        ({"name": "x", "project": "a", "scopes": ["root"]}, "/scopes/0"),
        ({"name": "x", "project": "a", "scopes": []}, "/scopes"),
        ({"name": "x", "project": "a", "expires_in": "soon"}, "/expires_in"),
        ({"name": "x", "project": "a", "expires_in": -1}, "/expires_in"),
        ({"name": "", "project": "a"}, "/name"),
        ({"name": "x"}, "/project"),
    ],
)
async def test_a_wrong_request_for_a_key_is_refused(guarded: Api, body: dict[str, Any], pointer: str) -> None:
    answer = await guarded.client.post("/keys", json=body)

    assert (answer.status_code, answer.json()["errors"][0]["pointer"]) == (422, pointer), answer.text


async def test_a_service_without_an_api_key_refuses_to_make_keys(api: Api) -> None:
    answer = await api.client.post("/keys", json={"name": "x", "project": "a"})

    assert (answer.status_code, answer.json()["code"]) == (409, "keys_not_in_force")
    assert LOCAL.by is None


async def test_a_deleted_key_is_refused_at_once_and_its_streams_end(guarded: Api) -> None:
    key = await a_key(guarded, "vision")
    path = await _a_job_of(guarded, key)
    messages = _messages(guarded, path, key)
    assert await anext(messages), "the event stream is open"
    async with guarded.socket(path, additional_headers=bearer(key)) as socket:
        await socket.recv()

        assert (await guarded.client.delete(f"/keys/{key['id']}")).status_code == 204

        assert (await guarded.client.get("/jobs", headers=bearer(key))).status_code == 401
        _, code, reason = await rest(socket)
    assert (code, reason) == (4401, "this key was deleted, or has expired")
    async with asyncio.timeout(PATIENCE):
        assert all([message is not None async for message in messages])


@pytest.mark.own_statement
async def test_another_process_refuses_a_deleted_key_within_a_second(serve: Serve, database_url: str) -> None:
    here, there = await serve(database_url, api_key=KEY), await serve(database_url, api_key=KEY)
    key = await a_key(here)
    async with asyncio.timeout(PATIENCE):
        while (await there.client.get("/jobs", headers=bearer(key))).status_code != 200:
            await asyncio.sleep(0.02)
        path = await _a_job_of(there, key)
        async with there.socket(path, additional_headers=bearer(key)) as socket:
            await socket.recv()
            await here.client.delete(f"/keys/{key['id']}")
            ending = asyncio.create_task(rest(socket))
            await until_async(ending.done, within=5, what="the streams of the key end")
            assert ending.result()[1] == 4401
        assert (await there.client.get("/jobs", headers=bearer(key))).status_code == 401


async def test_an_expired_key_is_refused_and_its_streams_end(guarded: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    key = await a_key(guarded, expires_in=3600)
    path = await _a_job_of(guarded, key)

    async with guarded.socket(path, additional_headers=bearer(key)) as socket:
        await socket.recv()
        monkeypatch.setattr("service.keyring.now_ms", lambda: now_ms() + 3_600_001)
        assert (await rest(socket))[1] == 4401

    answer = await guarded.client.get("/jobs", headers=bearer(key))
    assert answer.status_code == 401
    assert key["prefix"] in answer.json()["detail"]
    assert key["expires_at"] in answer.json()["detail"]


async def test_the_last_use_of_a_key_is_stored_but_not_for_every_request(guarded: Api) -> None:
    key, unused = await a_key(guarded), await a_key(guarded)
    for _ in range(3):
        await guarded.client.get("/jobs", headers=bearer(key))
    assert not any(row.last_used_at for row in await guarded.db.read(keys.all_keys))

    await guarded.services.gatekeeper.keyring.close()

    used = {row.id: row.last_used_at for row in await guarded.db.read(keys.all_keys)}
    assert used[key["id"]]
    assert used[unused["id"]] is None


# Sockets -------------------------------------------------------------------------------------------------------------


@pytest.mark.own_statement
async def test_a_ticket_opens_one_socket_of_its_project_once_at_any_process(serve: Serve, database_url: str) -> None:
    here, there = await serve(database_url, api_key=KEY), await serve(database_url, api_key=KEY)
    key, foreign = await a_key(here, "vision"), await a_key(here, "speech")
    path = await _a_job_of(here, key, ended=True)

    async def opened(at: Api, ticket: str, more: str = "") -> int:
        return (await at.frames(f"{path}?ticket={ticket}{more}"))[1]

    await there.services.gatekeeper.keyring.refresh()
    ticket = await _ticket(here, key)
    assert await opened(there, ticket) == 1000
    assert await opened(here, ticket) == 4401, "a ticket must work only once over all processes"
    assert await opened(here, await _ticket(here, foreign)) == 4404
    assert await opened(here, await _ticket(here, key), "&project=speech") == 4403
    assert await opened(here, "0" * 64) == 4401
    last_ticket = await _ticket(here, key)
    await here.client.delete(f"/keys/{key['id']}")
    assert await opened(here, last_ticket) == 4401
    answer = await here.client.get("/jobs", headers=bearer(ticket))
    assert answer.status_code == 401, "a ticket must not work as a key"


async def test_an_expired_ticket_opens_no_socket(guarded: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    path = await _a_job_of(guarded, KEY, ended=True)
    monkeypatch.setattr("service.auth.TICKET_SECONDS", -1)
    ticket = await _ticket(guarded, KEY)

    _, code, reason = await guarded.frames(f"{path}?ticket={ticket}")

    assert (code, reason) == (4401, "this ticket has been used or has expired")


@pytest.mark.parametrize("name", ["key", "api_key", "access_token", "Token", "q"])
async def test_a_key_in_a_url_is_refused_with_the_reason(guarded: Api, name: str) -> None:
    key = await a_key(guarded)
    path = await _a_job_of(guarded, key)

    answer = await guarded.client.get(f"/jobs?{name}={key['key']}", headers={"Authorization": ""})
    frames, code, reason = await guarded.frames(f"{path}?{name}={key['key']}")

    assert answer.status_code == 422
    assert answer.json()["errors"][0]["code"] == "key_in_url"
    assert (frames, code) == ([], 4400)
    assert "a key must not be in a URL" in reason
    assert key["key"] not in answer.text + reason


async def test_a_key_has_a_limit_of_open_streams(serve: Serve, sqlite_url: str) -> None:
    api = await serve(sqlite_url, api_key=KEY, streams_per_key=2)
    key = await a_key(api)
    path = await _a_job_of(api, key)

    async with api.socket(path, additional_headers=bearer(key)) as first:
        messages = _messages(api, path, key)
        assert await anext(messages)
        _, code, reason = await api.frames(path, additional_headers=bearer(key))
        answer = await api.client.get(path, headers=bearer(key))
        assert (code, answer.status_code) == (4429, 429)
        assert "2 streams open" in reason
        assert int(answer.headers["retry-after"]) > 0
        with suppress(ConnectionClosed):
            await first.close()
    quota = api.services.gatekeeper.keyring.caller(key["key"].encode()).quota
    async with asyncio.timeout(PATIENCE):
        while len(quota._open) > 1:
            await asyncio.sleep(0.01)
    async with api.socket(path, additional_headers=bearer(key)) as second:
        assert await second.recv()
    await messages.aclose()


# Rate limits ---------------------------------------------------------------------------------------------------------


async def test_a_key_above_its_rate_limit_delays_no_other_key(
    serve: Serve, sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("service.rate_limit.BURST_SECONDS", 2000)
    api = await serve(sqlite_url, api_key=KEY, rate_per_key=0.001)
    eager, calm = await a_key(api), await a_key(api)

    answers = [await api.client.get("/jobs", headers=bearer(eager)) for _ in range(4)]

    assert [answer.status_code for answer in answers] == [200, 200, 429, 429]
    assert 500 < int(answers[-1].headers["retry-after"]) <= 1000
    assert answers[-1].json()["code"] == "too_many_requests"
    assert (await api.client.get("/jobs", headers=bearer(calm))).status_code == 200


async def test_requests_without_a_valid_key_are_counted_by_address(
    serve: Serve, sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("service.rate_limit.BURST_SECONDS", 2000)
    api = await serve(sqlite_url, api_key=KEY, rate_per_address=0.001)
    bad = bearer("fpk_00000000_" + "0" * 64)

    answers = [await api.client.get("/jobs", headers=bad) for _ in range(2)]
    answers += [await api.client.get("/readyz"), await api.client.get("/jobs", headers=bad)]

    assert [answer.status_code for answer in answers] == [401, 401, 429, 429]
    assert 500 < int(answers[-1].headers["retry-after"]) <= 1000
    assert answers[-1].json()["code"] == "too_many_requests"
    assert (await api.client.get("/jobs")).status_code == 200
    _, code, _ = await api.frames(f"/jobs/{await api.submit()}/stream?ticket={'0' * 64}")
    assert code == 4429
    async with api.socket("/stream?tag=a", additional_headers=bearer(KEY)):
        pass


async def test_a_request_without_a_valid_key_is_counted_before_it_is_parsed(
    serve: Serve, sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("service.rate_limit.BURST_SECONDS", 1000)
    api = await serve(sqlite_url, api_key=KEY, rate_per_address=0.005)
    bad = bearer("fpk_00000000_" + "0" * 64)
    broken = {"Origin": "http://["}

    first = await api.client.post("/jobs", headers=bad | broken)
    second = await api.client.post("/jobs?token=x", headers=bad)
    answers = [await api.client.post("/jobs", headers=bad | broken) for _ in range(4)]
    answers += [await api.client.get("/jobs?key=x", headers=bad), await api.client.get("/livez")]

    assert (first.status_code, second.json()["errors"][0]["code"]) == (403, "key_in_url")
    assert [answer.status_code for answer in answers] == [403, 403, 403, 429, 429, 429]
    _, code, _ = await api.frames("/stream?tag=a&ticket=", additional_headers=bad)
    assert code == 4429


def test_addresses_of_a_network_share_a_limit_that_expires_when_unused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("service.rate_limit.MOST_REMEMBERED", 2)
    monkeypatch.setattr("service.rate_limit.BURST_SECONDS", 1000)
    limits = AddressLimits(rate=0.001)
    limits.count("2001:db8::1")
    with pytest.raises(TooManyRequests):
        limits.count("2001:db8::2")

    for address in ("10.0.0.1", "10.0.0.2", "2001:db8::3"):
        limits.count(address)
    with pytest.raises(TooManyRequests):
        limits.count("10.0.0.2")
    assert network_of("::ffff:10.0.0.1") == "10.0.0.1"


def test_a_token_bucket_refills_at_its_rate_up_to_its_burst() -> None:
    quota = Quota(rate=10)
    start = quota._counted_at

    def accepted_requests(at: float) -> int:
        count = 0
        with suppress(TooManyRequests):
            while True:
                quota.count(start + at)
                count += 1
        return count

    assert accepted_requests(0) == 10 * BURST_SECONDS
    assert accepted_requests(1) == 10
    assert accepted_requests(1000) == 10 * BURST_SECONDS


# Logs and answers ----------------------------------------------------------------------------------------------------


async def test_the_log_names_who_made_and_deleted_a_key_but_no_key(
    guarded: Api, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG):
        key = await a_key(guarded)
        await guarded.client.get("/jobs", headers=bearer(key))
        await guarded.client.delete(f"/keys/{key['id']}", headers=bearer(key))
        await guarded.client.get("/jobs", headers=bearer(key))

    audit = [record.getMessage() for record in caplog.records if record.name == "footplate.audit"]
    assert audit == [
        f"key {key['prefix']} (of vision, project vision, {json.dumps(sorted(EVERYTHING))}) made by the bootstrap key",
        f"key {key['prefix']} (of vision, project vision) deleted by of vision ({key['prefix']})",
    ]
    assert key["key"] not in caplog.text
    assert KEY not in caplog.text


async def test_every_change_of_a_job_names_its_caller(guarded: Api) -> None:
    key = await a_key(guarded)
    job = (await _a_job_of(guarded, key)).removesuffix("/stream")
    for verb in ("pause", "resume", "cancel"):
        assert (await guarded.client.post(f"{job}/{verb}", headers=bearer(key))).status_code == 202
    await guarded.client.patch(f"{job}?project=vision", json={"priority": 1, "name": "new"})

    report = (await guarded.client.get(f"{job}/events", headers=bearer(key))).json()["data"]

    me = f"of vision ({key['prefix']})"
    assert [(event["data"].get("state"), event["data"]["by"]) for event in report] == [
        ("queued", me), ("paused", me), ("queued", me), ("cancelled", me), (None, "the bootstrap key"),
    ]  # fmt: skip
    assert report[-1]["data"]["message"] == "changed: name, priority"


@pytest.mark.parametrize(
    ("secret_text", "redacted_text"),
    [
        ("fpk_3f9a1c2b_" + "a" * 64, "fpk_3f9a1c2b_…"),
        ("Authorization: Bearer anything", "Authorization: Bearer …"),
        ("GET /jobs/x/stream?ticket=0123&after=1", "GET /jobs/x/stream?ticket=…&after=1"),
        (f"offered footplate.key.{KEY}, footplate", "offered footplate.key.…, footplate"),
        (f"odd {KEY}!", "odd …!"),
    ],
)
def test_no_log_line_shows_a_key(secret_text: str, redacted_text: str) -> None:
    formatter = Redacting("%(message)s", [KEY])
    try:
        raise RuntimeError(secret_text)
    except RuntimeError:
        record = logging.LogRecord("x", logging.ERROR, "x.py", 1, "it was %s", (secret_text,), sys.exc_info())

    text = formatter.format(record)

    assert text.startswith(f"it was {redacted_text}")
    assert f"RuntimeError: {redacted_text}" in text
    assert secret_text not in text


async def test_an_error_shows_only_the_prefix_of_a_key(guarded: Api) -> None:
    key = (await a_key(guarded))["key"]
    prefix = key[: len("fpk_3f9a1c2b_")]

    report = await guarded.client.post("/jobs", json={**SPEC, "model": f"/{key}", key: 1})
    lookup = await guarded.client.get(f"/jobs/{key}")

    for answer in (report, lookup):
        assert 400 <= answer.status_code < 500
        assert key not in answer.text
        assert f"{prefix}…" in answer.json()["instance"] + json.dumps(answer.json()["errors"], ensure_ascii=False)


async def test_nodes_show_only_the_jobs_that_a_key_may_see(guarded: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    from footplate.contract.lifecycle import JobState
    from service.store import attempts, jobs
    from service.store.row_types import SourceRow
    from tests.service.api.test_system import a_node

    vision, speech = await a_key(guarded, "vision"), await a_key(guarded, "speech")
    job = (await _a_job_of(guarded, vision)).split("/")[2]
    node = await a_node(guarded)
    await guarded.db.write(lambda conn: jobs.record(conn, JobId(job), state=JobState.RUNNING))
    source = SourceRow(job, 1, 0, node, "b1", 1, "[]", None, None, None, None, 0, None, None)  # type: ignore[arg-type]
    monkeypatch.setattr(attempts, "open_sources", lambda conn: [source])

    rows = {}
    for who, headers in (("vision", bearer(vision)), ("speech", bearer(speech)), ("operator", {})):
        (row,) = (await guarded.client.get("/nodes", headers=headers)).json()["data"]
        rows[who] = (row["jobs"], row["slots_used"])

    assert rows == {"vision": ([job], 1), "speech": ([], 1), "operator": ([job], 1)}


async def test_a_link_downloads_with_a_ticket_once_and_reads_nothing_else(guarded: Api) -> None:
    key = await a_key(guarded)
    submission = await guarded.client.post("/jobs", json=SPEC, headers=bearer(key))
    job = submission.json()["id"]
    folder = guarded.services.settings.artifacts_path / "jobs" / job / "attempts" / "1" / "outputs"
    folder.mkdir(parents=True)
    (folder / "a b.bin").write_bytes(b"whole")
    await guarded.db.write(lambda conn: jobs.record(conn, job, outputs=f"jobs/{job}/attempts/1/outputs"))
    file = f"/jobs/{job}/outputs/a%20b.bin"
    ticket, other, elsewhere = [await _ticket(guarded, holder) for holder in (key, key, await a_key(guarded, "speech"))]

    async with httpx2.AsyncClient(base_url=guarded.url) as link:
        job_answer = await link.get(f"/jobs/{job}?ticket={other}")
        foreign = await link.get(f"{file}?ticket={elsewhere}")
        outside = await link.get(f"{file}?ticket={await _ticket(guarded, key)}&project=speech")
        first = await link.get(f"{file}?project=vision&ticket={ticket}")
        second = await link.get(f"{file}?ticket={ticket}")
        deleting = await link.delete(f"/jobs/{job}?ticket={await _ticket(guarded, key)}")

    assert (first.status_code, first.content) == (200, b"whole")
    assert first.headers["content-disposition"].startswith("attachment")
    answers = (job_answer, foreign, outside, second, deleting)
    assert [answer.status_code for answer in answers] == [422, 404, 403, 401, 401], [a.text for a in answers]


async def _a_job_of(api: Api, key: dict[str, Any] | str, *, ended: bool = False) -> str:
    """Submits a job with this key, and returns the path of its stream."""
    answer = await api.client.post("/jobs", json=SPEC, headers=bearer(key))
    assert answer.status_code == 201, answer.text
    if ended:
        await api.end(JobId(answer.json()["id"]))
    return f"/jobs/{answer.json()['id']}/stream"


async def _ticket(api: Api, key: dict[str, Any] | str) -> str:
    answer = await api.client.post("/tickets", headers=bearer(key))
    assert answer.status_code == 201, answer.text
    return str(answer.json()["ticket"])


async def _messages(api: Api, path: str, key: dict[str, Any]) -> Any:
    async with (
        httpx2.AsyncClient(base_url=api.url, timeout=PATIENCE) as client,
        client.stream("GET", path, headers=bearer(key)) as answer,
    ):
        assert answer.status_code == 200
        async for line in answer.aiter_lines():
            yield line
