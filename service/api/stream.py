"""The live events of one job, as a websocket or as server-sent events. Replay and live events are one loop over SQL.

    {"events": […]}  …  {"caught_up": 1234}  …  {"events": […]}  …  {"end": "succeeded", "last": 2345}  close 1000

docs/reference/stream.md describes the frames and the close codes to users:

- 4400: a bad cursor or parameter. 4404: there is no such job.
- 4401: no valid key, or the key was deleted. 4403: the key lacks the scope.
- 4408: the reader is too slow. The close reason has the last `no`. 4429: the key has too many streams open.
- 1012: the service restarts, or the database is unreachable.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, replace
from typing import Annotated, Protocol

from fastapi import APIRouter, Header, Query, Request, WebSocket, WebSocketDisconnect
from starlette.responses import Response
from starlette.types import Receive, Scope, Send
from uvicorn.protocols.utils import ClientDisconnected

from footplate.contract.errors import FootplateError, Problem, Unavailable
from footplate.contract.events import METRIC_KINDS, Kind
from footplate.contract.lifecycle import JobState
from service.api.history import After, Kinds, read_kinds
from service.api.views import flat
from service.deps import JobPath, Services, StrictRoute, check_query, job_id, services_of
from service.end_tasks import end_tasks
from service.events.tail import Channel, EventPage, View
from service.problems import InvalidQuery
from service.server import ACCEPTED_SUBPROTOCOL, SOCKET, Connection, close_code, close_reason, text_frame
from service.store.row_types import EventRow

router = APIRouter(route_class=StrictRoute, tags=["live"])

SLOW_SECONDS = 10.0
"""A reader that accepts no data for this long is disconnected, and gets the cursor to reconnect with."""
MAX_NUMBER = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Format:
    """The format of a stream: functions that encode its frames. Empty bytes are not sent."""

    render: Callable[[Sequence[EventRow]], bytes]
    caught_up: Callable[[int], bytes]
    end: Callable[[JobState, int], bytes]
    idle: bytes = b""


def _events_frame(rows: Sequence[EventRow]) -> bytes:
    return text_frame(f'{{"events":[{",".join([row.as_json() for row in rows])}]}}'.encode())


FRAMES = Format(
    render=_events_frame,
    caught_up=lambda no: text_frame(b'{"caught_up":%d}' % no),
    end=lambda state, last: text_frame(f'{{"end":"{state}","last":{last}}}'.encode()),
)
METRICS = Format(
    render=lambda rows: b"".join(text_frame(flat(row).encode()) for row in rows),
    caught_up=lambda no: b"",
    end=lambda state, last: b"",
)
MESSAGES = Format(
    render=lambda rows: "".join(f"id: {row.no}\ndata: {row.as_json()}\n\n" for row in rows).encode(),
    caught_up=lambda no: b'event: caught_up\ndata: {"caught_up":%d}\n\n' % no,
    end=lambda state, last: f'event: end\nid: {last}\ndata: {{"end":"{state}","last":{last}}}\n\n'.encode(),
    idle=b": still here\n\n",
)


@dataclass(slots=True)
class Reader:
    """One open stream of a job's events, with its filter and its cursor."""

    channel: Channel
    format: Format
    cursor: int
    kinds: frozenset[Kind] | None = None
    seconds_between: float = 0.0
    ping_seconds: float = 15.0

    @property
    def is_closed(self) -> bool:
        return self.channel.is_closed

    @property
    def place(self) -> str:
        return f"after={self.cursor}"

    async def first(self) -> EventPage:
        """Returns the first page. Raises NotFound, or InvalidQuery for a bad cursor, before the answer begins."""
        page = await self._page()
        if self.cursor > page.head:
            detail = f"{self.cursor} lies beyond the job's last event, which is {page.head}"
            raise InvalidQuery([Problem("/query/after", "bad_cursor", detail, "start with after=0")])
        return page

    async def frames(self) -> AsyncIterator[bytes]:
        """Yields frames until the job's history ends or the service stops."""
        is_live = False
        while not self.is_closed:
            page = await self._page_when_there_is_sql()
            self.cursor = page.last
            if page.body:
                yield page.body
            if not page.is_caught_up:
                continue
            if not is_live:
                is_live = True
                yield self.format.caught_up(page.last)
            if page.is_end:
                yield self.format.end(page.state, page.last)
                return
            if self.seconds_between:
                await asyncio.sleep(self.seconds_between)
            while not await self._news(page):
                yield self.format.idle

    async def _news(self, page: EventPage) -> bool:
        """Waits for news of the job. Returns False if a ping is due first, in a format that has one."""
        try:
            async with asyncio.timeout(self.ping_seconds if self.format.idle else None):
                await self.channel.news(page)
        except TimeoutError:
            return False
        return True

    async def _page(self) -> EventPage:
        return await self.channel.after(self.cursor, View(self.format.render, self.kinds))

    async def _page_when_there_is_sql(self) -> EventPage:
        """Returns the next page. Waits while the database is unreachable, and keeps the stream open meanwhile."""
        while True:
            try:
                return await self._page()
            except Unavailable as error:
                await asyncio.sleep(error.retry_after_seconds)


# The websocket -------------------------------------------------------------------------------------------------------


class Follower(Protocol):
    """An object that yields a websocket's frames. `place` is the query parameter with which its client reconnects."""

    @property
    def is_closed(self) -> bool:
        """True if the service stops. The websocket then closes even if there are further frames."""

    @property
    def place(self) -> str: ...

    def frames(self) -> AsyncIterator[bytes]: ...


Opening = Callable[[Services], AbstractAsyncContextManager[Follower]]


@router.websocket("/jobs/{job}/stream")
async def stream_socket(websocket: WebSocket, job: str) -> None:
    await _serve_job(websocket, job, FRAMES, ("after", "kinds", "max_hz"))


@router.websocket("/jobs/{job}/metrics")
async def metrics_socket(websocket: WebSocket, job: str) -> None:
    await _serve_job(websocket, job, METRICS, ("after",), METRIC_KINDS)


async def _serve_job(
    websocket: WebSocket, job: str, format: Format, parameters: Sequence[str], kinds: frozenset[Kind] | None = None
) -> None:
    @asynccontextmanager
    async def opened(services: Services) -> AsyncIterator[Reader]:
        query = websocket.query_params
        after, between = read_number(query.get("after"), "after", 0), seconds_between(query.get("max_hz"))
        async with services.tail.watch(services.project, job_id(job)) as channel:
            reader = Reader(channel, format, after, kinds or read_kinds(query.get("kinds")), between)
            await reader.first()
            yield reader

    await serve(websocket, parameters, opened)


async def serve(websocket: WebSocket, parameters: Sequence[str], opened: Opening) -> None:
    """Serves a socket. Accepts it before any check, because browsers see close codes but no HTTP status."""
    connection: Connection = websocket.scope["extensions"][SOCKET]["connection"]
    services = services_of(websocket)
    await websocket.accept(subprotocol=websocket.scope.get(ACCEPTED_SUBPROTOCOL))
    try:
        check_query(websocket.query_params.multi_items(), [*parameters, "ticket", "project"])
        async with opened(services) as reader:
            with services.meters.sockets.track_inprogress():
                await _until_either_leaves(websocket, connection, reader, services)
    except FootplateError as error:
        await websocket.close(close_code(error), close_reason(error.message))


async def _until_either_leaves(
    websocket: WebSocket, connection: Connection, reader: Follower, services: Services
) -> None:
    sending = asyncio.create_task(_send_all(websocket, connection, reader, services))
    leaving = asyncio.create_task(_until_disconnected(websocket.receive))
    try:
        await asyncio.wait((sending, leaving), return_when=asyncio.FIRST_COMPLETED)
        if sending.done():
            await sending
    except (ClientDisconnected, WebSocketDisconnect):
        pass
    finally:
        await end_tasks(sending, leaving)


async def _send_all(websocket: WebSocket, connection: Connection, reader: Follower, services: Services) -> None:
    sent_to = reader.place
    async for frames in reader.frames():
        if frames:
            if not connection.can_write:
                try:
                    await connection.drain(within=SLOW_SECONDS)
                except TimeoutError:
                    services.meters.slow_readers.inc()
                    connection.cut(4408, f"too slow: reconnect with {sent_to}")
                    return
            connection.write(frames)
        sent_to = reader.place
    if not reader.is_closed:
        await websocket.close(1000)


async def _until_disconnected(receive: Receive) -> None:
    """Reads and ignores messages of the client, because only reading reveals a disconnect."""
    while (await receive())["type"] not in ("websocket.disconnect", "http.disconnect"):
        pass


def seconds_between(max_hz: str | None) -> float:
    hertz = read_number(max_hz, "max_hz", 0)
    return 1 / hertz if hertz else 0.0


def read_number(text: str | None, name: str, default: int) -> int:
    if text is None:
        return default
    if not (text.isascii() and text.isdigit() and len(text) <= 10 and int(text) <= MAX_NUMBER):
        raise InvalidQuery(
            [Problem(f"/query/{name}", "invalid_parameter", f"{text[:40]!r} is not a whole number of 0 or more")]
        )
    return int(text)


# Server-sent events --------------------------------------------------------------------------------------------------


@router.get(
    "/jobs/{job}/stream",
    summary="The job's live events, as server-sent events; the same address opens as a websocket",
    responses={200: {"content": {"text/event-stream": {}}}},
)
async def stream_events(
    request: Request,
    job: JobPath,
    after: After = 0,
    kinds: Kinds = None,
    max_hz: Annotated[int, Query(ge=0, le=MAX_NUMBER, description="The most messages a second. 0: no limit.")] = 0,
    last_event_id: Annotated[
        str | None,
        Header(
            description="The number of the last event received. A browser's EventSource sends it when it reconnects.",
            json_schema_extra={"pattern": "^[0-9]{1,9}$"},
        ),
    ] = None,
) -> Response:
    services = services_of(request)
    services.caller.quota.require_room()
    cursor = read_number(last_event_id, "Last-Event-ID", after)
    async with services.tail.watch(services.project, job_id(job)) as channel:
        between = 1 / max_hz if max_hz else 0
        reader = Reader(channel, MESSAGES, cursor, read_kinds(kinds), between, services.settings.ping_seconds)
        first = await reader.first()
    if first.is_end and cursor and cursor == first.last:
        # A 204 stops an EventSource from reconnecting.
        return Response(status_code=204)
    return EventStream(services, reader)


class EventStream(Response):
    """A response that sends the reader's frames until they end or the client disconnects."""

    media_type = "text/event-stream"

    def __init__(self, services: Services, reader: Reader) -> None:
        super().__init__(headers={"X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        self._services, self._reader = services, reader

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        leaving = asyncio.create_task(_until_disconnected(receive))
        sending = asyncio.create_task(self._send_all(send))
        try:
            holding = self._services.caller.quota.holding
            with self._services.meters.sockets.track_inprogress(), holding(leaving.cancel):
                await asyncio.wait((sending, leaving), return_when=asyncio.FIRST_COMPLETED)
            if leaving.cancelled():
                # The key was deleted. End the answer properly: the client is refused when it reconnects.
                await send({"type": "http.response.body", "body": b""})
        finally:
            await end_tasks(sending, leaving)

    async def _send_all(self, send: Send) -> None:
        tail, first_reader = self._services.tail, self._reader
        async with tail.watch(first_reader.channel.project, first_reader.channel.job) as channel:
            reader = replace(first_reader, channel=channel)
            async for messages in reader.frames():
                async with asyncio.timeout(SLOW_SECONDS):
                    await send({"type": "http.response.body", "body": messages, "more_body": True})
        await send({"type": "http.response.body", "body": b""})
