"""Sends a request to the serving session of a checkpoint, and reads the pieces of its answer from Redis.

A session is opened if the checkpoint has none. A request that its session has not started is sent to the next session,
for example if the session ended because it was idle. Nothing here is stored: if Redis loses a request or an answer, the
client gets an error that says so.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any, NoReturn

from redis.asyncio import Redis
from starlette.requests import ClientDisconnect, Request

from footplate.contract import redis_keys
from footplate.contract.errors import FootplateError, Unavailable
from footplate.contract.ids import JobId, uuid7
from footplate.contract.lifecycle import JobState, Reason, StopMode
from footplate.contract.serving import SILENCE_SECONDS, AnswerPiece, AnswerPieceKind, ServingRequest, Work
from service.deps import LARGE, Services, in_thread_if_large, services_of
from service.jobs import serving
from service.jobs.serving import OPEN, ServedCheckpoint, find, open_session, running_sessions, session_spec
from service.jobs.stopping import cancel
from service.problems import TooManyRequests
from service.redis_client import UNREACHABLE
from service.store import jobs
from service.store.row_types import JobRow
from service.store.times import now_ms

MOST_PIECES = 1000
LOOK_SECONDS, SHORTEST_LOOK_SECONDS = 1.0, 0.01
"""The interval at which the state of the session is read while no piece of the answer comes."""
END_LOOK_SECONDS = 0.1
"""The interval at which a session's state is read after the session has sent a request back."""
LONGEST_END_SECONDS = 10.0
"""The longest wait for the sessions of a job that is about to be deleted."""
MOST_SESSIONS = 3
"""The number of sessions to which one request is sent if it was never started."""
RETRY_SECONDS = 5
AGAIN = "send the request again"
MAY_WORK_AGAIN = (Reason.NODE_LOST, Reason.CRASHED, Reason.STALLED)
"""The reasons of a failed session that are not the checkpoint's fault."""


class ServingBusy(TooManyRequests):
    """The queue of the session is full."""

    code = "serving_busy"
    title = "Too many requests wait for this model"


class NotServedYet(Unavailable):
    """The session has not started, or has not come to this request, within the time that the client waits."""

    code = "not_served_yet"
    title = "The model does not answer yet"
    retry_after_seconds = RETRY_SECONDS


class ServingEnded(Unavailable):
    """The session ended while it answered, or its answer was lost."""

    code = "serving_ended"
    title = "The model has stopped answering"


class ServingFailed(FootplateError):
    """The session cannot load the checkpoint. Another request would fail in the same way."""

    code = "serving_failed"
    status = 409
    title = "The checkpoint cannot be loaded"


class RequestRefused(FootplateError):
    """The session cannot answer this request. Another request may work."""

    code = "cannot_answer"
    status = 422
    title = "The model cannot answer this"

    def __init__(self, data: dict[str, Any]) -> None:
        super().__init__(str(data.get("message", "")), hint=data.get("hint"))
        self.code = str(data.get("code", self.code))


class _SendAgain(Exception):
    """The session ended before it started the request."""


@dataclass(frozen=True, slots=True)
class ModelRequest:
    """A user's request to the model in a checkpoint of a job."""

    job: JobId
    checkpoint: str | None
    work: Work
    body: dict[str, Any]
    wait_seconds: float
    """The time within which a session must start to work on the request."""


@dataclass(frozen=True, slots=True)
class AnswerStream:
    """The session that answers, and the stream of its answer: CHUNK pieces, and DONE at the end."""

    session: JobId
    served: ServedCheckpoint
    pieces: AsyncIterator[AnswerPiece]

    async def last_data(self) -> dict[str, Any]:
        """Waits for the end of the answer, and returns the data of its last piece."""
        return [piece.data async for piece in self.pieces][-1]


@asynccontextmanager
async def send_request(request: Request, model_request: ModelRequest) -> AsyncIterator[AnswerStream]:
    """Sends the request, and yields once a session has started to work on it. Withdraws it if the client leaves.

    Raises NotFound, NotServable, CheckpointMissing, ServingBusy, NotServedYet, ServingEnded, ServingFailed and
    RequestRefused.
    """
    services = services_of(request)
    deadline = time.monotonic() + model_request.wait_seconds
    shares = True
    session: JobId | None = None
    for _ in range(MOST_SESSIONS):
        served = await _session(services, model_request, shares=shares)
        assert served.session is not None
        session = served.session.id
        exchange = _Exchange(services, served, model_request, deadline, request.is_disconnected)
        try:
            await exchange.send()
            await exchange.until_started()
            yield AnswerStream(session, served, exchange.pieces())
            return
        except _SendAgain:
            shares = shares and served.adapter is None
        finally:
            await exchange.withdraw()
        if served.adapter is None:
            await exchange.until_session_ends()
    last = f"GET /jobs/{session} says why the last one did"
    raise ServingEnded(f"{MOST_SESSIONS} serving sessions ended before they started this request: {last}", hint=AGAIN)


async def end_sessions(services: Services, job: JobId) -> None:
    """Ends the sessions of a job that is about to be deleted. Waits a moment for the answers that they have begun."""
    stop_seconds, by = services.settings.stop_seconds, services.caller.by
    end, project = serving.end_sessions, services.project
    deadline = time.monotonic() + LONGEST_END_SECONDS
    while sessions := await services.db.write(end, project, job, now_ms(), stop_seconds=stop_seconds, by=by):
        for session in sessions:
            services.changed(session)
        if time.monotonic() > deadline:
            return
        await asyncio.sleep(END_LOOK_SECONDS)


async def _session(services: Services, model_request: ModelRequest, *, shares: bool) -> ServedCheckpoint:
    served = await services.db.read(find, services.project, model_request.job, model_request.checkpoint, shares=shares)
    if served.session is not None:
        return served
    spec = await in_thread_if_large(LARGE, lambda: session_spec(served))
    stop_seconds, by = services.settings.stop_seconds, services.caller.by
    new_session = await services.db.write(open_session, served, spec, now_ms(), stop_seconds=stop_seconds, by=by)
    services.wake_control()
    return new_session


class _Exchange:
    """One request and its answer, with one session."""

    def __init__(
        self,
        services: Services,
        served: ServedCheckpoint,
        model_request: ModelRequest,
        deadline: float,
        is_gone: Callable[[], Awaitable[bool]],
    ) -> None:
        assert served.session is not None
        self._services, self._session, self._limit = services, served.session.id, served.limits.max_queue
        self._request = ServingRequest(
            id=f"ask_{uuid7()}", work=model_request.work, body=model_request.body, adapter=served.adapter
        )
        self._redis: Redis = services.notifier.redis
        self._deadline, self._is_gone = deadline, is_gone
        self._is_started = self._is_over = False
        self._received_at = time.monotonic()
        self._unread: deque[AnswerPiece] = deque()

    async def send(self) -> None:
        """Puts the request at the end of the session's queue. Raises ServingBusy if the queue is full."""
        queue, request = redis_keys.serving_queue(self._session), self._request.id
        try:
            async with self._redis.pipeline(transaction=True) as pipeline:
                pipeline.set(
                    redis_keys.serving_request(request), self._request.model_dump_json(), ex=redis_keys.SERVING_SECONDS
                )
                pipeline.rpush(queue, request)
                pipeline.expire(queue, redis_keys.SERVING_SECONDS)
                _, length, _ = await pipeline.execute()
        except UNREACHABLE as error:
            raise _redis_unreachable() from error
        if length > self._limit and await self._taken_back():
            self._is_over = True
            raise ServingBusy(f"{self._limit} requests wait for this checkpoint already", wait_seconds=RETRY_SECONDS)

    async def until_started(self) -> None:
        while not self._is_started:
            if self._unread:
                self._note(self._unread.popleft())
            elif not await self._receive() and time.monotonic() > self._deadline:
                await self._give_up()

    async def until_session_ends(self) -> None:
        """Waits until SQL has the end of the session. The request can then go to a new session of the checkpoint."""
        while time.monotonic() < self._deadline:
            row = await self._services.db.read(jobs.peek, self._session)
            if row is None or row.state not in OPEN:
                return
            await asyncio.sleep(END_LOOK_SECONDS)

    async def pieces(self) -> AsyncIterator[AnswerPiece]:
        while not self._is_over:
            if not self._unread:
                await self._receive()
                continue
            piece = self._unread.popleft()
            self._note(piece)
            if piece.kind in (AnswerPieceKind.CHUNK, AnswerPieceKind.DONE):
                yield piece

    async def withdraw(self) -> None:
        """Withdraws the request, so that the session stops working on it. Does nothing after the answer is complete."""
        if self._is_over:
            return
        self._is_over = True
        with suppress(*UNREACHABLE):
            if not await self._taken_back():
                withdrawn = redis_keys.serving_withdrawn(self._session)
                await self._redis.rpush(withdrawn, self._request.id)
                await self._redis.expire(withdrawn, redis_keys.SERVING_SECONDS)

    def _note(self, piece: AnswerPiece) -> None:
        self._is_over = self._is_over or piece.is_last
        if piece.kind is AnswerPieceKind.AGAIN:
            raise _SendAgain
        self._is_started = self._is_started or piece.kind is not AnswerPieceKind.ALIVE
        if piece.kind is AnswerPieceKind.ERROR:
            if piece.data.get("code") == ServingEnded.code:
                raise ServingEnded(str(piece.data.get("message")), hint=AGAIN)
            raise RequestRefused(piece.data)

    async def _receive(self) -> bool:
        """Waits a moment for pieces of the answer. Returns False if none arrived. Raises if the session has ended."""
        key = redis_keys.serving_answer(self._request.id)
        seconds_left = self._deadline - time.monotonic()
        seconds = LOOK_SECONDS if self._is_started else min(LOOK_SECONDS, max(seconds_left, SHORTEST_LOOK_SECONDS))
        try:
            entry = await self._redis.blpop([key], timeout=seconds)
            # Pieces may have come while the session's state was read.
            row = None if entry is not None else await self._look()
            texts = [*([] if entry is None else [entry[1]]), *(await self._redis.lpop(key, MOST_PIECES) or [])]
        except UNREACHABLE as error:
            raise _redis_unreachable() from error
        if texts:
            self._received_at = time.monotonic()
            self._unread.extend(map(AnswerPiece.model_validate_json, texts))
        elif row is not None:
            self._ended(row)
        return bool(texts)

    async def _look(self) -> JobRow | None:
        """Reads the session from SQL. Returns its row if it takes no more requests, else None.

        Raises ServingEnded if the session was deleted, or if a started answer stops arriving.
        """
        if await self._is_gone():
            raise ClientDisconnect
        row = await self._services.db.read(jobs.peek, self._session)
        if row is None:
            raise ServingEnded(f"the serving session {self._session} was deleted", hint=AGAIN)
        is_silent = self._is_started and time.monotonic() - self._received_at > SILENCE_SECONDS
        if is_silent and not row.state.is_terminal:
            text = f"nothing came from the serving session {self._session} for {SILENCE_SECONDS:g} s"
            raise ServingEnded(text, hint=AGAIN)
        # A session that is stopping still finishes the requests that it has started.
        is_open = row.state in OPEN or (self._is_started and row.state is JobState.STOPPING)
        return None if is_open else row

    def _ended(self, row: JobRow) -> NoReturn:
        """Raises the error for a session that has ended, or `_SendAgain` if it never started this request."""
        why = f"{row.reason}: {row.message}" if row.message else str(row.reason)
        if self._is_started:
            raise ServingEnded(f"the serving session {row.id} ended before its answer was complete ({why})", hint=AGAIN)
        if row.state is not JobState.FAILED or row.reason in MAY_WORK_AGAIN:
            raise _SendAgain
        message = f"the serving session {row.id} could not load the checkpoint ({why})"
        raise ServingFailed(message, hint=f"`footplate logs {row.id}` shows what the session printed")

    async def _give_up(self) -> NoReturn:
        """Ends a session that was opened for this request only, and has not started."""
        row = await self._services.db.read(jobs.peek, self._session)
        with suppress(*UNREACHABLE):
            queue_length = await self._redis.llen(redis_keys.serving_queue(self._session))
            if row is not None and row.state is JobState.QUEUED and queue_length <= 1:
                db, stop_seconds = self._services.db, self._services.settings.stop_seconds
                await db.write(cancel, row.project, row.id, StopMode.GRACEFUL, now_ms(), stop_seconds=stop_seconds)
                self._services.changed(row.id)
        if row is not None and row.state is JobState.RUNNING:
            detail = f"the serving session {row.id} has not started this request, because it answers others"
            raise NotServedYet(detail, hint="try again in a moment")
        why = f"{row.state}, {row.message or row.reason}" if row is not None else "deleted"
        sessions = await self._services.db.read(running_sessions, project=self._services.project)
        hint = "try again in a moment"
        if sessions:
            holder = sessions[0].id
            hint = f"session {holder} holds a slot, and still gets requests; `footplate cancel {holder}` frees the slot"
        raise NotServedYet(f"the serving session {self._session} has not started: {why}", hint=hint)

    async def _taken_back(self) -> bool:
        """Removes the request from the queue. Returns False if the session has taken it already."""
        removed_count: Any = await self._redis.lrem(redis_keys.serving_queue(self._session), 1, self._request.id)
        await self._redis.delete(redis_keys.serving_request(self._request.id))
        return bool(removed_count)


def _redis_unreachable() -> Unavailable:
    return Unavailable("Redis, which carries the requests to models, does not answer", hint="try again in a moment")
