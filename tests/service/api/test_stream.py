"""Tests live streams, which continue from stored events to new events without a gap, for fast and slow readers."""

from __future__ import annotations

import asyncio
import json
import socket as sockets
import time
from contextlib import suppress
from typing import Any

import httpx2
import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus

from footplate.contract.events import Kind
from footplate.contract.ids import new_job_id
from footplate.contract.lifecycle import JobState
from service.api import stream
from service.events import tail
from tests.service.api.conftest import KEY, PATIENCE, Api, Serve, each_case, numbers, rest
from tests.support.processes import until_async


async def test_a_late_reader_gets_the_whole_history_and_then_the_end(both: Api) -> None:
    job = await both.submit()
    await both.append(job, *[{"loss": n} for n in range(300)])
    await both.end(job)

    frames, code, _ = await both.frames(f"/jobs/{job}/stream")

    assert numbers(frames) == list(range(1, 305))
    assert [frame["caught_up"] for frame in frames if "caught_up" in frame] == [304]
    assert frames[-1] == {"end": "succeeded", "last": 304}
    assert code == 1000


@pytest.mark.own_statement
async def test_live_events_follow_the_replay_without_a_gap_or_a_duplicate(both: Api) -> None:
    job = await both.submit()
    reading = asyncio.create_task(both.frames(f"/jobs/{job}/stream"))

    for n in range(100):
        await both.append(job, {"loss": n}, {"loss": n})
    await both.end(job)
    frames, code, _ = await reading

    assert numbers(frames) == list(range(1, 205))
    assert sum("caught_up" in frame for frame in frames) == 1
    assert code == 1000


async def test_events_arrive_even_if_every_notification_is_lost(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tail, "FALLBACK_SECONDS", 0.05)
    job = await api.submit()
    async with api.socket(f"/jobs/{job}/stream") as socket:
        await socket.recv()
        assert json.loads(await socket.recv()) == {"caught_up": 1}

        await api.append(job, {"loss": 1.0}, wake=False)

        frame = json.loads(await asyncio.wait_for(socket.recv(), PATIENCE))
    assert numbers([frame]) == [2]


async def test_a_reader_can_select_kinds_of_events(api: Api) -> None:
    job = await api.submit()
    await api.append(job, {"loss": 1.0})
    await api.append(job, {"text": "hello"}, kind=Kind.NOTE)
    await api.end(job)

    frames, code, _ = await api.frames(f"/jobs/{job}/stream?kinds=note,log")

    assert numbers(frames) == [2, 3]
    assert frames[-1] == {"end": "succeeded", "last": 6}
    assert code == 1000


async def test_a_reader_with_max_hz_gets_every_event_in_fewer_frames(api: Api) -> None:
    job = await api.submit()
    began = time.monotonic()
    reading = asyncio.create_task(api.frames(f"/jobs/{job}/stream?max_hz=5"))
    for n in range(50):
        await api.append(job, {"loss": n})
        await asyncio.sleep(0)
    await api.end(job)

    frames, _, _ = await reading

    assert numbers(frames) == list(range(1, 55))
    # One frame comes at the start and one at the end, independent of `max_hz`.
    assert sum("events" in frame for frame in frames) <= 5 * (time.monotonic() - began) + 3


async def test_many_readers_share_one_read_of_sql(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    job = await api.submit()
    reads = 0
    look = tail._look

    def counted(*args: Any, **kwargs: Any) -> Any:
        nonlocal reads
        reads += 1
        return look(*args, **kwargs)

    monkeypatch.setattr(tail, "_look", counted)
    readers = [asyncio.create_task(api.frames(f"/jobs/{job}/stream")) for _ in range(30)]
    await until_async(lambda: api.services.meters.sockets._value.get() == 30, what="all 30 readers are connected")
    before = reads

    for n in range(10):
        await api.append(job, {"loss": n})
    await api.end(job)
    everything = await asyncio.gather(*readers)

    assert all(numbers(frames) == list(range(1, 15)) and code == 1000 for frames, code, _ in everything)
    # Without sharing, there would be 30 times 12 reads. Some reads find no new event.
    assert reads - before <= 10 * 12


@each_case(
    ("path", "code"),
    [
        ("/jobs/nonsense/stream", 4404),
        ("/jobs/job_0123456789abcdef0123456789abcdef/stream", 4404),
        ("/jobs/job_0123456789abcdef0123456789abcdef/metrics", 4404),
        ("/jobs/{job}/stream?after=-1", 4400),
        ("/jobs/{job}/stream?after=x", 4400),
        ("/jobs/{job}/stream?after=99", 4400),
        ("/jobs/{job}/stream?kinds=nonsense", 4400),
        ("/jobs/{job}/stream?aftre=1", 4400),
        ("/jobs/{job}/metrics?kinds=log", 4400),
    ],
)
async def test_a_socket_that_is_refused_closes_with_a_code_and_a_reason(api: Api, path: str, code: int) -> None:
    job = await api.submit()

    frames, result, reason = await api.frames(path.replace("{job}", job))

    assert (frames, result) == ([], code)
    assert reason


@pytest.mark.own_statement
async def test_the_metrics_socket_replays_follows_and_closes(both: Api) -> None:
    job = await both.submit()
    await both.append(job, {"loss": 2.0, "step": "shadowed"})
    await both.append(job, {"text": "not a metric"}, kind=Kind.NOTE)
    reading = asyncio.create_task(both.frames(f"/jobs/{job}/metrics"))
    await both.append(job, {"loss": 1.0})
    await both.append(job, {"eval_loss": 1.5}, kind=Kind.EVAL)
    await both.end(job)

    rows, code, _ = await reading

    assert rows == [
        {"no": 2, "step": None, "epoch": None, "loss": 2.0},
        {"no": 4, "step": None, "epoch": None, "loss": 1.0},
        {"no": 5, "step": None, "epoch": None, "eval_loss": 1.5},
    ]
    assert code == 1000
    polled = (await both.client.get(f"/jobs/{job}/metrics")).json()
    assert polled["data"] == rows


async def test_a_reader_that_does_not_read_is_disconnected_with_its_cursor(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream, "SLOW_SECONDS", 0.3)
    # The reader has to read megabytes before it receives the close frame.
    monkeypatch.setattr("service.server.CUT_SECONDS", 60.0)
    job = await api.submit()
    raw = sockets.socket()
    raw.setsockopt(sockets.SOL_SOCKET, sockets.SO_RCVBUF, 4096)
    raw.setblocking(False)
    port = int(api.url.rpartition(":")[2])
    await asyncio.get_running_loop().sock_connect(raw, ("127.0.0.1", port))
    async with api.socket(f"/jobs/{job}/stream", sock=raw, max_queue=1, ping_interval=None) as socket:
        for _ in range(60):
            await api.append(job, *[{"text": "x" * 1000} for _ in range(100)])
        await until_async(lambda: api.services.meters.slow_readers._value.get() == 1, what="the reader counts as slow")

        frames, code, reason = await rest(socket)

    received = numbers(frames)
    assert code == 4408
    assert received == list(range(1, len(received) + 1))
    assert reason == f"too slow: reconnect with after={received[-1]}"
    monkeypatch.undo()
    again, code, _ = await _until_caught_up(api, f"/jobs/{job}/stream?after={received[-1]}")
    assert numbers(again) == list(range(received[-1] + 1, 6002))


async def test_a_stopping_service_closes_its_sockets_with_1012(api: Api) -> None:
    job = await api.submit()
    async with api.socket(f"/jobs/{job}/stream") as socket:
        await socket.recv()

        api.server.stop()

        _, code, _ = await rest(socket)
    assert code == 1012


async def test_messages_from_a_reader_are_ignored_and_a_large_message_closes_the_socket(api: Api) -> None:
    job = await api.submit()
    async with api.socket(f"/jobs/{job}/stream") as socket:
        await socket.send("hello")
        await api.append(job, {"loss": 1.0})
        await until_async(lambda: _received(socket, 2), what="the reader still receives events")

        with suppress(ConnectionClosed):
            await socket.send("x" * 70_000)
            await rest(socket)
        assert socket.close_code == 1009


async def test_an_unreadable_handshake_is_answered_and_holds_no_connection(api: Api) -> None:
    job = await api.submit()

    with pytest.raises(InvalidStatus) as error:
        await api.frames(f"/jobs/{job}/stream?kinds={'x' * 10_000}")

    assert error.value.response.status_code == 431


async def test_a_socket_from_a_page_of_another_site_is_refused_before_the_handshake(
    serve: Serve, sqlite_url: str
) -> None:
    api = await serve(sqlite_url, allowed_origins="https://trains.example")
    job = await api.submit()

    with pytest.raises(InvalidStatus) as error:
        await api.frames(f"/jobs/{job}/stream", origin="https://evil.example")
    await api.end(job)

    assert error.value.response.status_code == 403
    assert json.loads(error.value.response.body or b"")["code"] == "forbidden"
    for origin in ("https://trains.example", api.url):
        _, code, _ = await api.frames(f"/jobs/{job}/stream", origin=origin)
        assert code == 1000


async def test_a_socket_opens_with_the_key_or_with_a_ticket_that_works_once(serve: Serve, sqlite_url: str) -> None:
    api = await serve(sqlite_url, api_key=KEY)
    job = await api.submit()
    await api.end(job)
    path = f"/jobs/{job}/stream"
    ticket = (await api.client.post("/tickets")).json()["ticket"]

    async def code(address: str = path, **options: Any) -> int:
        return (await api.frames(address, **options))[1]

    assert await code() == 4401
    assert await code(subprotocols=["footplate", "footplate.key.wrong"]) == 4401
    assert await code(subprotocols=["footplate", f"footplate.key.{KEY}"]) == 1000
    assert await code(additional_headers={"Authorization": f"Bearer {KEY}"}) == 1000
    assert await code(f"{path}?ticket={ticket}") == 1000
    assert await code(f"{path}?ticket={ticket}") == 4401
    assert await code(f"{path}?ticket=nonsense") == 4401
    async with api.socket(path, subprotocols=["footplate", f"footplate.key.{KEY}"]) as socket:
        assert socket.subprotocol == "footplate"


async def test_a_job_that_is_deleted_closes_its_streams(api: Api) -> None:
    job = await api.submit()
    reading = asyncio.create_task(api.frames(f"/jobs/{job}/stream"))
    await until_async(lambda: api.services.meters.sockets._value.get() == 1, what="the reader is connected")

    def erase(conn: Any) -> None:
        from service.store import jobs

        jobs.erase(conn, job)

    await api.db.write(erase)
    api.services.tail.wake([job])

    assert (await reading)[1] == 4404


async def test_server_sent_events_carry_the_same_history(both: Api) -> None:
    job = await both.submit()
    await both.append(job, *[{"loss": n} for n in range(200)])
    reading = asyncio.create_task(_messages(both.client, f"/jobs/{job}/stream?after=100"))
    await both.append(job, {"loss": 1.0})
    await both.end(job)

    messages = await reading

    events = [message for message in messages if "event" not in message]
    assert [int(message["id"]) for message in events] == list(range(101, 206))
    assert [json.loads(message["data"])["no"] for message in events] == list(range(101, 206))
    assert [message["event"] for message in messages if "event" in message] == ["caught_up", "end"]


async def test_an_event_source_reconnects_at_its_cursor_and_receives_the_end(api: Api) -> None:
    job = await api.submit()
    await api.append(job, *[{"loss": n} for n in range(10)])
    await api.end(job)
    path = f"/jobs/{job}/stream"

    again = await _messages(api.client, path, {"Last-Event-ID": "9"})
    over = await api.client.get(path, headers={"Last-Event-ID": "14"})

    assert [int(message["id"]) for message in again if "event" not in message] == list(range(10, 15))
    assert over.status_code == 204


async def test_an_event_stream_of_an_unknown_job_or_cursor_is_refused(api: Api) -> None:
    job = await api.submit()

    missing = await api.client.get(f"/jobs/{new_job_id()}/stream")
    beyond = await api.client.get(f"/jobs/{job}/stream?after=99")

    assert (missing.status_code, missing.json()["code"]) == (404, "not_found")
    assert (beyond.status_code, beyond.json()["errors"][0]["code"]) == (422, "bad_cursor")


async def test_an_open_event_stream_does_not_delay_a_stopping_service(api: Api) -> None:
    job = await api.submit()
    reading = asyncio.create_task(_messages(api.client, f"/jobs/{job}/stream"))
    await until_async(lambda: api.services.meters.sockets._value.get() == 1, what="the reader is connected")

    api.server.stop()

    await until_async(reading.done, within=3, what="the stream ends")
    assert [message.get("event") for message in reading.result()] == [None, "caught_up"]


async def test_a_stream_of_a_resumed_job_continues_at_its_cursor(api: Api) -> None:
    job = await api.submit()
    await api.end(job, JobState.FAILED)
    first, _, _ = await api.frames(f"/jobs/{job}/stream")

    assert (await api.client.post(f"/jobs/{job}/resume")).status_code == 202
    reading = asyncio.create_task(api.frames(f"/jobs/{job}/stream?after={first[-1]['last']}"))
    await api.end(job)

    frames, code, _ = await reading
    assert numbers(frames) == [5, 6, 7, 8]
    assert (frames[-1]["end"], code) == ("succeeded", 1000)


async def _messages(
    client: httpx2.AsyncClient, path: str, headers: dict[str, str] | None = None
) -> list[dict[str, str]]:
    result: list[dict[str, str]] = []
    async with client.stream("GET", path, headers=headers or {}) as answer:
        assert answer.status_code == 200, await answer.aread()
        assert answer.headers["content-type"].startswith("text/event-stream")
        async for line in answer.aiter_lines():
            if not line:
                result.append({})
            elif not line.startswith(":"):
                if not result:
                    result.append({})
                name, _, value = line.partition(": ")
                result[-1][name] = value
    return [message for message in result if message]


async def _until_caught_up(api: Api, path: str) -> tuple[list[Any], int, str]:
    result: list[Any] = []
    async with api.socket(path) as socket:
        while not result or "caught_up" not in result[-1]:
            result.append(json.loads(await asyncio.wait_for(socket.recv(), PATIENCE)))
    return result, 0, ""


async def _received(socket: Any, no: int) -> bool:
    frame = json.loads(await socket.recv())
    return no in numbers([frame])
