"""A fake connection of the client that answers from a list, and records the requests and the waits between them."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Any

import httpx2
from websockets.frames import Frame, Opcode
from websockets.protocol import OPEN
from websockets.server import ServerProtocol

from footplate.sdk.wire import Wire

URL = "http://footplate.test"


class FakeWire(Wire):
    """A connection that returns each answer once, in order. An answer that is an exception is raised."""

    tries = 4
    on_bytes = None

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)
        self.requests: list[httpx2.Request] = []
        self.pauses: list[float] = []
        self.replies: list[bytes] = []

    def request(self, method: str, path: str, **options: Any) -> httpx2.Request:
        options.pop("timeout", None)
        return httpx2.Request(method, URL + path, **options)

    async def send(self, request: httpx2.Request) -> httpx2.Response:
        answer = self._next(request)
        answer.request = request
        return answer

    @asynccontextmanager
    async def open(self, request: httpx2.Request) -> AsyncIterator[FakeAnswer]:
        answer = self._next(request)
        answer.response.request = request
        answer.replies = self.replies
        yield answer

    async def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)

    async def close(self) -> None: ...

    def _next(self, request: httpx2.Request) -> Any:
        self.requests.append(request)
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


class FakeAnswer:
    """An open answer that returns these chunks and then breaks."""

    def __init__(self, *chunks: bytes, status: int = 101, content_type: str = "") -> None:
        self.response = httpx2.Response(status, headers={"content-type": content_type} if content_type else {})
        self._chunks = list(chunks)
        self.replies: list[bytes] = []

    async def read(self, timeout_seconds: float) -> bytes:
        if not self._chunks:
            raise httpx2.ReadError("cut off")
        return self._chunks.pop(0)

    async def write(self, data: bytes) -> None:
        self.replies.append(data)

    async def complete(self) -> httpx2.Response:
        content = b"".join(self._chunks)
        return httpx2.Response(self.response.status_code, content=content, request=self.response.request)


class Socket:
    """The service's end of a websocket, whose methods return frames as bytes."""

    def __init__(self) -> None:
        self._protocol = ServerProtocol(state=OPEN)

    def events(self, *numbers: int, kind: str = "log") -> bytes:
        return self.frame({"events": [event(number, kind=kind) for number in numbers]})

    def frame(self, value: Any) -> bytes:
        self._protocol.send_text(json.dumps(value).encode())
        return self._bytes()

    def fragments(self, value: Any) -> bytes:
        """Returns one frame in two fragments, as a proxy may forward the frame."""
        text = json.dumps(value).encode()
        self._protocol.send_text(text[:9], fin=False)
        self._protocol.send_continuation(text[9:], fin=True)
        return self._bytes()

    def ping(self, payload: bytes) -> bytes:
        self._protocol.send_ping(payload)
        return self._bytes()

    def close(self, code: int, reason: str = "") -> bytes:
        self._protocol.send_close(code, reason)
        return self._bytes()

    def pongs(self, replies: Iterable[bytes]) -> list[bytes]:
        """Returns the payloads of the pongs that the client wrote."""
        for reply in replies:
            self._protocol.receive_data(reply)
        frames = [event for event in self._protocol.events_received() if isinstance(event, Frame)]
        return [bytes(frame.data) for frame in frames if frame.opcode is Opcode.PONG]

    def _bytes(self) -> bytes:
        return b"".join(self._protocol.data_to_send())


def event(no: int, **changes: Any) -> dict[str, Any]:
    settings = {
        "v": 1, "job": "job_" + "0" * 32, "no": no, "attempt": 1, "source": 0, "seq": no, "rank": 0, "kind": "log",
        "at": "2026-01-01T00:00:00.000Z", "step": no, "epoch": 0.0, "data": {"loss": 1.0},
    }  # fmt: skip
    return {**settings, **changes}


def messages(values: Iterable[dict[str, Any]]) -> bytes:
    return b"".join(b"data: " + json.dumps(value).encode() + b"\n\n" for value in values)
