"""Events as they happen, over connections that may break: what was seen last is where the next connection begins.

One request opens either kind of stream: a service that can be upgraded answers 101 and speaks websocket; behind a proxy
that takes upgrades out, the same address answers 200 with server-sent events. Both are read by a decoder that does no
I/O, and both say the same frames: `{"events": […]}`, `{"caught_up": 12}`, `{"end": "succeeded", "last": 12}`.
"""

from __future__ import annotations

import base64
import json
import logging
import os
import time
from collections.abc import AsyncGenerator, Collection, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import httpx2
from pydantic import ValidationError

from contract.events import Event, Kind
from footplate.errors import FootplateError, WaitTimeout, of_answer
from footplate.sdk.asking import COME_BACK, Ask, pause, refusal, unreachable
from footplate.sdk.wire import Line, Wire

log = logging.getLogger("footplate.client")

SILENCE_SECONDS = 45.0
"""A service that lives says something at least every 15 s."""
LONGEST_PAUSE_SECONDS = 5.0
SLOW_READER = 4408
TOO_MANY = 4429
"""Streams at once; those that broke are counted for up to a minute."""
REFUSED = {
    4400: (422, "invalid_query"),
    4401: (401, "unauthorized"),
    4403: (403, "forbidden"),
    4404: (404, "not_found"),
}
"""Close codes that no second try would change, and what HTTP has for them."""
_KINDS = frozenset(Kind)


@dataclass
class Place:
    """Where one reader is in a job's history, and how long it has."""

    after: int = 0
    kinds: Collection[str] | None = None
    deadline: float | None = None
    who: str = "the job"
    patience: float = 600.0
    """Seconds without any connection before a broken one is given up."""
    end: str | None = None
    """The state in which the job's history ended."""

    @property
    def seconds_to_read(self) -> float:
        """How long to wait for the next word."""
        left = SILENCE_SECONDS if self.deadline is None else self.deadline - time.monotonic()
        return max(0.01, min(SILENCE_SECONDS, left))

    def check_deadline(self) -> None:
        if self.deadline is not None and time.monotonic() >= self.deadline:
            raise WaitTimeout(f"{self.who} has not ended in time", hint="it goes on; wait again, or cancel it")

    @property
    def params(self) -> dict[str, Any]:
        kinds = {"kinds": ",".join(self.kinds)} if self.kinds is not None else {}
        return {"after": self.after, **kinds}

    def take(self, frame: dict[str, Any]) -> Iterator[Event]:
        """The events of a frame that are new to this reader and of a kind that it knows."""
        for told in frame.get("events", ()):
            if told["no"] <= self.after:
                continue
            self.after = told["no"]
            if event := read_event(told):
                yield event
        self.after = max(self.after, frame.get("caught_up", 0), frame.get("last", 0))
        self.end = frame.get("end")


def read_event(told: dict[str, Any]) -> Event | None:
    """None: of a kind that a newer service has, and that its readers may pass over."""
    if told.get("kind") not in _KINDS:
        return None
    try:
        return Event.model_validate(told)
    except ValidationError as error:
        raise FootplateError(
            f"event {told.get('no')} is of a version that this client does not know",
            hint="install the version of footplate that the service has",
        ) from error


class Where(Protocol):
    """A Place, or one in each of many jobs' histories."""

    patience: float
    end: str | None

    @property
    def seconds_to_read(self) -> float: ...

    @property
    def params(self) -> dict[str, Any]: ...

    def check_deadline(self) -> None: ...

    def take(self, frame: dict[str, Any]) -> Iterator[Event]: ...


async def follow(wire: Wire, path: str, place: Where, *, has_met: bool = False) -> AsyncGenerator[Event, None]:
    """Every event from `place` on, once each and in order, until the history ends. Raises WaitTimeout at its
    deadline, ApiError when the service refuses, Unreachable when it stays away: with `has_met`, which says that it has
    answered before, as late as in the midst of a stream."""
    contact = Contact(wire.tries, place.patience, has_met=has_met)
    while place.end is None:
        request = _opening(wire, path, place)
        try:
            async with wire.open(request) as line:
                decoder = await _decoder(line, place)
                while place.end is None:
                    for frame in decoder.feed(await line.read(place.seconds_to_read)):
                        contact.made()
                        for event in place.take(frame):
                            yield event
                    if decoder.reply:
                        await line.write(decoder.reply)
        except (httpx2.TransportError, Interrupted) as error:
            place.check_deadline()
            if place.end is None:
                await wire.sleep(contact.lost(request.url, error))


@dataclass
class Contact:
    """For how long a reader has been alone, and when it gives up: soon before the first word, late after it."""

    tries: int
    patience: float
    tried: int = 0
    lost_at: float | None = None
    has_met: bool = False

    def made(self) -> None:
        if self.lost_at is not None and self.has_met:
            log.warning("connected again")
        self.has_met, self.lost_at, self.tried = True, None, 0

    def lost(self, url: httpx2.URL, error: Exception) -> float:
        """Seconds until the next try. Raises Unreachable when there shall be none."""
        now = time.monotonic()
        if self.lost_at is None:
            self.lost_at = now
            if self.has_met:
                log.warning("connection lost (%s); trying again", error)
        self.tried += 1
        if now - self.lost_at > self.patience if self.has_met else self.tried >= self.tries:
            raise getattr(error, "refusal", None) or unreachable(url, error) from error
        at_once = isinstance(error, Interrupted) and error.code == SLOW_READER
        return 0.0 if at_once else min(pause(self.tried), LONGEST_PAUSE_SECONDS)


# Two kinds of stream, read without I/O -------------------------------------------------------------------------------


class Interrupted(Exception):
    """The stream ended before the history did; another connection goes on."""

    def __init__(self, code: int, reason: str, refusal: Exception | None = None) -> None:
        super().__init__(reason or f"closed with {code}")
        self.code = code
        self.refusal = refusal
        """What to raise when no other connection fares better."""


class Decoder(Protocol):
    @property
    def reply(self) -> bytes:
        """What the other side is owed, once."""

    def feed(self, data: bytes) -> Iterator[dict[str, Any]]:
        """The frames that are complete. Raises Interrupted, or ApiError, behind the last."""


class SocketDecoder:
    """A websocket after its handshake."""

    def __init__(self) -> None:
        from wsproto.connection import Connection, ConnectionType  # not at the import of a client that streams nothing

        self._connection = Connection(ConnectionType.CLIENT)
        self._text: list[str] = []
        self._reply: list[bytes] = []

    @property
    def reply(self) -> bytes:
        owed, self._reply = b"".join(self._reply), []
        return owed

    def feed(self, data: bytes) -> Iterator[dict[str, Any]]:
        from wsproto import events as frames
        from wsproto.utilities import ProtocolError

        try:
            self._connection.receive_data(data or None)
        except ProtocolError as error:
            raise Interrupted(1002, str(error)) from error
        for event in self._connection.events():
            if isinstance(event, frames.TextMessage):
                self._text.append(event.data)
                if event.message_finished:
                    yield json.loads("".join(self._text))
                    self._text = []
            elif isinstance(event, frames.Ping):
                self._reply.append(self._connection.send(event.response()))
            elif isinstance(event, frames.CloseConnection):
                raise _closed(event.code, event.reason or "")


def _closed(code: int, reason: str) -> Exception:
    if code in REFUSED:
        status, name = REFUSED[code]
        return of_answer(status, {"code": name, "detail": reason})
    too_many = of_answer(429, {"code": "too_many_requests", "detail": reason}) if code == TOO_MANY else None
    return Interrupted(code, reason, too_many)


class MessageDecoder:
    """Server-sent events."""

    reply = b""  # it is read only

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> Iterator[dict[str, Any]]:
        if not data:
            raise Interrupted(1006, "the stream ended early")
        *messages, self._rest = (self._rest + data).split(b"\n\n")
        for message in messages:
            for line in message.decode().split("\n"):
                if line.startswith("data: "):
                    told = json.loads(line[6:])
                    yield {"events": [told]} if "no" in told else told


async def _decoder(line: Line, place: Where) -> Decoder:
    answer = line.response
    if answer.status_code == 101:
        return SocketDecoder()
    if answer.status_code == 200 and "event-stream" in answer.headers.get("content-type", ""):
        return MessageDecoder()
    if answer.status_code == 204:
        place.end = "ended"  # this reader has had everything
        return MessageDecoder()
    said = httpx2.Response(answer.status_code, content=await line.rest(), request=answer.request)
    if answer.status_code in COME_BACK:
        raise Interrupted(1013, f"the service answers {answer.status_code}", refusal(said))
    raise refusal(said)


def _opening(wire: Wire, path: str, place: Where) -> httpx2.Request:
    headers = {
        "Connection": "Upgrade",
        "Upgrade": "websocket",
        "Sec-WebSocket-Version": "13",
        "Sec-WebSocket-Key": base64.b64encode(os.urandom(16)).decode(),
    }
    place.check_deadline()
    timeout = httpx2.Timeout(10.0, read=place.seconds_to_read)
    return Ask("GET", path, params=place.params, headers=headers).on(wire, timeout=timeout)
