"""Slow and endless senders are answered or cut off. Normal senders are not."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from service import http_timeouts
from tests.service.api.conftest import PATIENCE, SPEC, Api

HEAD = b"POST /jobs HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
BODY = json.dumps(SPEC).encode()
LENGTH = b"Content-Length: %d\r\n\r\n" % len(BODY)


@pytest.fixture(autouse=True)
def short_timeouts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_timeouts, "HEAD_SECONDS", 0.5)
    monkeypatch.setattr(http_timeouts, "BODY_SECONDS", 0.5)


@asynccontextmanager
async def connected(api: Api) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    reader, writer = await asyncio.open_connection("127.0.0.1", int(api.url.rpartition(":")[2]))
    try:
        yield reader, writer
    finally:
        writer.close()


async def answer_to(api: Api, *parts: bytes) -> bytes:
    """Sends the parts one by one, and returns all bytes that the server sends until it closes the connection."""
    async with asyncio.timeout(PATIENCE), connected(api) as (reader, writer):
        try:
            for part in parts:
                writer.write(part)
                await writer.drain()
            return await reader.read()
        except ConnectionResetError:
            return b"cut"


@pytest.mark.parametrize(
    ("parts", "answer"),
    [
        ([], b"HTTP/1.1 408 "),
        ([b"GET /li"], b"HTTP/1.1 408 "),
        ([HEAD], b"HTTP/1.1 408 "),
        ([b"\r\n\r\n"], b"HTTP/1.1 408 "),
        ([HEAD + b"X: " + b"x" * 2**20], b"HTTP/1.1 431 "),
        ([HEAD, *[b"X-%d: y\r\n" % number * 100 for number in range(1000)]], b"HTTP/1.1 431 "),
        ([HEAD + LENGTH + BODY[:-1]], b""),
        ([HEAD + b"Transfer-Encoding: chunked\r\n\r\n", b"2\r\n{}\r\n"], b""),
    ],
)
async def test_an_incomplete_request_does_not_keep_its_connection_open(
    api: Api, parts: list[bytes], answer: bytes
) -> None:
    result = await answer_to(api, *parts)

    assert result.startswith(answer) or result == b"cut", result
    assert (await api.client.get("/jobs")).json()["data"] == []
    # The connection that stays open belongs to `api.client`.
    async with asyncio.timeout(PATIENCE):
        while len(api.server.server_state.connections) > 1:
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("more", [b"GET /jo", b"\r\n"])
async def test_an_incomplete_second_request_does_not_keep_its_connection_open(api: Api, more: bytes) -> None:
    async with asyncio.timeout(PATIENCE), connected(api) as (reader, writer):
        writer.write(b"GET /livez HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        await reader.readuntil(b'{"status":"ok"}')

        writer.write(more)

        assert (await reader.read()).startswith(b"HTTP/1.1 408 ")


async def test_a_client_that_sends_slowly_but_steadily_is_served(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    looks = []
    look = http_timeouts.TimedProtocol._late
    monkeypatch.setattr(http_timeouts, "BODY_BYTES", 1)
    monkeypatch.setattr(http_timeouts, "BODY_SECONDS", 0.3)
    monkeypatch.setattr(http_timeouts.TimedProtocol, "_late", lambda self: (looks.append(1), look(self)))
    async with asyncio.timeout(PATIENCE), connected(api) as (reader, writer):
        writer.write(HEAD + b"Transfer-Encoding: chunked\r\n\r\n%x\r\n%b\r\n" % (len(BODY), BODY))
        while len(looks) < 3:
            writer.write(b"1\r\n \r\n")
            await asyncio.sleep(0.005)
        writer.write(b"0\r\n\r\n")

        assert (await reader.readline()).startswith(b"HTTP/1.1 201 ")


async def test_neither_an_idle_connection_nor_an_open_stream_is_cut(api: Api) -> None:
    job = await api.submit()
    async with api.socket(f"/jobs/{job}/stream") as socket:
        await socket.recv()
        await answer_to(api)

        await api.append(job, {"loss": 1.0})
        async with asyncio.timeout(PATIENCE):
            while "loss" not in str(await socket.recv()):
                pass
    assert (await api.client.get("/jobs")).status_code == 200
