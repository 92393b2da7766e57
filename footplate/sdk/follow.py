"""Streams a job's events. If the connection breaks, the next connection starts after the last received event.

One request opens either kind of stream. The service answers 101 and sends websocket frames. Behind a proxy that removes
the upgrade, the same address answers 200 and sends server-sent events. Both carry the same JSON: `{"events": […]}`,
`{"caught_up": 12}`, `{"end": "succeeded", "last": 12}`.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import AsyncGenerator, Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import httpx2
from pydantic import ValidationError

from footplate.contract.events import Event, Kind
from footplate.errors import FootplateError, WaitTimeout, of_answer
from footplate.sdk.request import RETRIED_STATUSES, ApiRequest, pause_seconds, refusal, unreachable
from footplate.sdk.wire import OpenAnswer, Wire

log = logging.getLogger("footplate.client")

SILENCE_SECONDS = 45.0
"""A connection without any message for this time is broken, because a service sends a ping at least every 20 s."""
LONGEST_PAUSE_SECONDS = 5.0
SLOW_READERS = frozenset({1011, 4408})
"""Close codes for a reader that did not read or answer a ping in time. The reader connects again at once."""
TOO_MANY = 4429
"""The close code for too many streams at once. The service counts a broken stream for up to a minute."""
REFUSED = {
    4400: (422, "invalid_query"),
    4401: (401, "unauthorized"),
    4403: (403, "forbidden"),
    4404: (404, "not_found"),
}
"""Close codes that are not retried, with the HTTP status and error code of the same meaning."""
_KINDS = frozenset(Kind)


@dataclass
class EventPosition:
    """A reader's position in a job's history, and its deadline."""

    after: int = 0
    kinds: str | None = None
    """The kinds of events, with commas. None means all."""
    deadline: float | None = None
    subject: str = "the job"
    patience: float = 600.0
    """The number of seconds without a connection after which the reader gives up."""
    end: str | None = None
    """The state in which the job has ended, or None."""

    @property
    def seconds_to_read(self) -> float:
        """The number of seconds to wait for the next frame."""
        seconds_left = SILENCE_SECONDS if self.deadline is None else self.deadline - time.monotonic()
        return max(0.01, min(SILENCE_SECONDS, seconds_left))

    def check_deadline(self) -> None:
        if self.deadline is not None and time.monotonic() >= self.deadline:
            raise WaitTimeout(
                f"{self.subject} has not ended in time", hint="the job continues; wait again, or cancel it"
            )

    @property
    def params(self) -> dict[str, Any]:
        return {"after": self.after, "kinds": self.kinds}

    def take(self, frame: dict[str, Any]) -> Iterator[Event]:
        """Yields a frame's events that are new to this reader and of a kind that this client knows."""
        for row in frame.get("events", ()):
            if row["no"] <= self.after:
                continue
            self.after = row["no"]
            if event := read_event(row):
                yield event
        self.after = max(self.after, frame.get("caught_up", 0), frame.get("last", 0))
        self.end = frame.get("end")


def read_event(row: dict[str, Any]) -> Event | None:
    """Returns the event in a JSON object, or None for a kind that only a newer client knows."""
    if row.get("kind") not in _KINDS:
        return None
    try:
        return Event.model_validate(row)
    except ValidationError as error:
        raise FootplateError(
            f"event {row.get('no')} is of a version that this client does not know",
            hint="install the version of footplate that the service has",
        ) from error


def comma_separated(names: str | Collection[str] | None) -> str | None:
    return names if names is None or isinstance(names, str) else ",".join(names)


async def follow(
    wire: Wire, path: str, position: EventPosition, *, was_connected: bool = False
) -> AsyncGenerator[Event, None]:
    """Yields every event after `position`, once each and in order, until the job has ended.

    Raises WaitTimeout at the deadline, ApiError if the service refuses, and Unreachable if the service stays
    unreachable. `was_connected` means that the service has answered before, so that the position's `patience` applies
    from the start.
    """
    reconnect = ReconnectPolicy(wire.tries, position.patience, was_connected=was_connected)
    while position.end is None:
        request = _stream_request(wire, path, position)
        try:
            async with wire.open(request) as answer:
                reader = await _frame_reader(answer, position)
                while position.end is None:
                    position.check_deadline()  # a read of server-sent events does not end at the deadline
                    for frame in await reader.frames(position.seconds_to_read):
                        reconnect.connected()
                        for event in position.take(frame):
                            yield event
        except (httpx2.TransportError, Interrupted) as error:
            position.check_deadline()
            if position.end is None:
                await wire.sleep(reconnect.disconnected(request.url, error))


@dataclass
class ReconnectPolicy:
    """Decides how long a reader tries to connect again.

    Before the first message, a reader gives up after `tries` tries. Afterwards, the reader gives up after
    `max_seconds_offline` seconds without a connection.
    """

    tries: int
    max_seconds_offline: float
    tries_done: int = 0
    lost_at: float | None = None
    was_connected: bool = False

    def connected(self) -> None:
        if self.lost_at is not None and self.was_connected:
            log.warning("connected again")
        self.was_connected, self.lost_at, self.tries_done = True, None, 0

    def disconnected(self, url: httpx2.URL, error: Exception) -> float:
        """Returns the seconds to wait before the next try. Raises Unreachable if no try is left."""
        now = time.monotonic()
        self.tries_done += 1
        if self.tries_done == 1 and isinstance(error, Interrupted) and error.code in SLOW_READERS:
            return 0.0
        if self.lost_at is None:
            self.lost_at = now
            if self.was_connected:
                log.warning("connection lost (%s); trying again", error)
        if now - self.lost_at > self.max_seconds_offline if self.was_connected else self.tries_done >= self.tries:
            raise getattr(error, "refusal", None) or unreachable(url, error) from error
        return min(pause_seconds(self.tries_done), LONGEST_PAUSE_SECONDS)


# The two kinds of stream ---------------------------------------------------------------------------------------------


class Interrupted(Exception):
    """Raised if a stream ends before the job has ended. Another connection continues the stream."""

    def __init__(self, code: int, reason: str, refusal: Exception | None = None) -> None:
        super().__init__(reason or f"closed with {code}")
        self.code = code
        self.refusal = refusal
        """The exception to raise if no other connection succeeds."""


class Websocket:
    """Reads frames from a websocket by the websockets library, which makes the pongs and the answer to a close.

    The library does no I/O here, because its own clients have another transport, proxies and TLS settings than the
    HTTP client. The session of httpx2 is not used either, because it cancels the task of a reader that leaves its loop
    early. With that session, a blocking reader's process could not exit while the service hangs.
    """

    def __init__(self, answer: OpenAnswer) -> None:
        from websockets.client import ClientProtocol  # Imported here, because not every client streams.
        from websockets.protocol import OPEN
        from websockets.uri import parse_uri

        self._answer, self._text = answer, b""
        self._protocol = ClientProtocol(parse_uri("ws://after.its.handshake"), state=OPEN, max_size=None)
        self._end: Exception | None = None

    async def frames(self, timeout_seconds: float) -> Sequence[dict[str, Any]]:
        """Returns the frames that arrive next, possibly none if none is complete yet.

        Raises Interrupted or ApiError at the end, and httpx2.TransportError if nothing arrives in time.
        """
        if self._end is None:
            await self._receive(timeout_seconds)
        frames = [json.loads(text) for text in self._messages()]
        if self._end is not None and not frames:
            raise self._end
        return frames

    async def _receive(self, timeout_seconds: float) -> None:
        protocol = self._protocol
        if data := await self._answer.read(timeout_seconds):
            protocol.receive_data(data)
        else:
            protocol.receive_eof()
        if closed := protocol.close_rcvd:
            self._end = _close_error(closed.code, closed.reason)
        elif protocol.parser_exc is not None:
            self._end = Interrupted(1006, str(protocol.parser_exc) or "the stream ended early")
        # Pongs are sent before the frames are returned. A slow reader of frames would let the service wait too long.
        if reply := b"".join(protocol.data_to_send()):
            with suppress(httpx2.TransportError):  # The next read raises this error, too.
                await self._answer.write(reply)

    def _messages(self) -> Iterator[bytes]:
        """Yields the complete messages among the frames that have arrived."""
        from websockets.frames import DATA_OPCODES, Frame

        for frame in self._protocol.events_received():
            if isinstance(frame, Frame) and frame.opcode in DATA_OPCODES:
                self._text += frame.data
                if frame.fin:
                    yield self._text
                    self._text = b""


def _close_error(code: int, reason: str) -> Exception:
    if code in REFUSED:
        status, name = REFUSED[code]
        return of_answer(status, {"code": name, "detail": reason})
    refusal = of_answer(429, {"code": "too_many_requests", "detail": reason}) if code == TOO_MANY else None
    return Interrupted(code, reason, refusal)


class ServerSentEvents:
    """Reads frames from an answer with server-sent events."""

    def __init__(self, answer: OpenAnswer) -> None:
        self._answer, self._incomplete = answer, b""

    async def frames(self, timeout_seconds: float) -> Sequence[dict[str, Any]]:
        """Returns frames as those of a websocket."""
        if not (data := await self._answer.read(timeout_seconds)):
            raise Interrupted(1006, "the stream ended early")
        *messages, self._incomplete = (self._incomplete + data).split(b"\n\n")
        values = [
            json.loads(line[6:])
            for message in messages
            for line in message.decode().split("\n")
            if line.startswith("data: ")
        ]
        return [{"events": [value]} if "no" in value else value for value in values]


async def _frame_reader(answer: OpenAnswer, position: EventPosition) -> Websocket | ServerSentEvents:
    response = answer.response
    if response.status_code == 101:
        return Websocket(answer)
    if response.status_code == 204:
        position.end = "ended"  # 204: there are no more events
    if response.status_code == 204 or "event-stream" in response.headers.get("content-type", ""):
        return ServerSentEvents(answer)
    error = refusal(await answer.complete())
    if response.status_code in RETRIED_STATUSES:
        raise Interrupted(1013, f"the service answers {response.status_code}", error)
    raise error


def _stream_request(wire: Wire, path: str, position: EventPosition) -> httpx2.Request:
    from websockets.utils import generate_key

    headers = {
        "Connection": "Upgrade",
        "Upgrade": "websocket",
        "Sec-WebSocket-Version": "13",
        "Sec-WebSocket-Key": generate_key(),
    }
    position.check_deadline()
    request = ApiRequest("GET", path, position.params, headers, read_seconds=position.seconds_to_read)
    return request.http_request(wire)
