"""Passes requests from Redis to a serving process, and the pieces of its answers back to Redis.

The serving process has no access to Redis, and users' code may run in it. So every piece is checked: it must belong to
a request that the process has. One thread waits for Redis, another for the process's socket.

A request is popped from its list in Redis only if the process has room for it. So the list is the queue.
"""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import redis
from pydantic import ValidationError

from footplate.contract import redis_keys
from footplate.contract.ids import JobId
from footplate.contract.repeated_errors import ErrorLog
from footplate.contract.serving import (
    ALIVE_SECONDS,
    MAX_PIECE_BYTES,
    SLOT_WANTED,
    AdapterOffer,
    AnswerPiece,
    AnswerPieceKind,
    ServingRequest,
)
from worker.redis_client import REDIS_ERRORS

log = logging.getLogger("footplate.worker")

POP_SECONDS = 1.0
FULL_SECONDS = 0.05
"""The interval at which withdrawals are read while the process has no room for another request."""
READ_BYTES = 256 * 1024
ENDED = "the serving process ended before the answer was complete"


class ServeLink:
    """The two threads that pass requests and answers of one serving session."""

    def __init__(self, client: redis.Redis, session: JobId, limit: int, clean: Callable[[Any], Any]) -> None:
        self._client, self._session, self._limit, self._clean = client, session, limit, clean
        self._ours, self.theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        """The two ends of the socket pair. The serving process inherits `theirs`."""
        self.fetch_adapter: Callable[[AdapterOffer], threading.Event] | None = None
        """Fetches an adapter from a bucket. It is None if the artifact store is a folder, which the process reads."""
        self._taken: dict[str, bool] = {}
        """The requests that the serving process has, by id. True: it has begun to answer."""
        self._guard = threading.Lock()
        self._sending = threading.Lock()
        """Held while a line is written to the process, because both threads write lines."""
        self._ends: deque[AnswerPiece] = deque()
        """The last pieces of requests that this link has ended. A piece stays until Redis takes it."""
        self._has_room, self._is_ready, self._closing = threading.Event(), threading.Event(), threading.Event()
        self._threads: list[threading.Thread] = []
        self._alive_at = 0.0
        self._failures = ErrorLog(log, f"the serving session {session}")

    def start(self) -> None:
        """Starts both threads, once the serving process has inherited its end of the socket."""
        self.theirs.close()
        for work in (self._pass_requests, self._pass_answers):
            thread = threading.Thread(target=work, name=f"serve-{self._session}", daemon=True)
            thread.start()
            self._threads.append(thread)

    def close(self, within: float = 1.0) -> None:
        """Ends the threads. Requests without a complete answer get an error, or go to another session."""
        self._closing.set()
        self._has_room.set()
        self._is_ready.set()
        with suppress(OSError):
            self._ours.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(within)
        self._ours.close()
        self.theirs.close()

    # Requests

    def _pass_requests(self) -> None:
        self._is_ready.wait()
        while not self._closing.is_set():
            try:
                self._turn()
            except REDIS_ERRORS as error:
                self._failures.failed("waits for Redis: %s", error)
                self._closing.wait(POP_SECONDS)
            else:
                self._failures.went_well()

    def _turn(self) -> None:
        queue, withdrawn = redis_keys.serving_queue(self._session), redis_keys.serving_withdrawn(self._session)
        self._push_ends()
        self._report_alive()
        if len(self._taken) < self._limit:
            entry: Any = self._client.blpop([withdrawn, queue], timeout=POP_SECONDS)
            if entry is not None:
                handle = self._take if entry[0].decode() == queue else self._withdraw
                handle(entry[1].decode())
            return
        self._has_room.clear()
        self._has_room.wait(FULL_SECONDS)
        while (request_id := self._client.lpop(withdrawn)) is not None:
            self._withdraw(request_id.decode())  # type: ignore[union-attr]

    def _take(self, request: str) -> None:
        body: Any = self._client.getdel(redis_keys.serving_request(request))
        if body is None:
            # The request has expired in Redis, or its client has withdrawn it.
            return
        with self._guard:
            self._taken[request] = False
        self._fetch_adapter_of(body)
        if self._closing.is_set() or not self._send(body):
            self._end(request, ENDED)

    def _fetch_adapter_of(self, body: bytes) -> None:
        """Waits until the adapter that the request needs is on this node. Meanwhile reports that the session lives."""
        if self.fetch_adapter is None or (adapter := ServingRequest.model_validate_json(body).adapter) is None:
            return
        is_over = self.fetch_adapter(adapter)
        while not self._closing.is_set() and not is_over.wait(POP_SECONDS):
            self._report_alive()

    def _withdraw(self, request: str) -> None:
        if request in self._taken or request == SLOT_WANTED:
            self._send(AnswerPiece(id=request, kind=AnswerPieceKind.AGAIN).model_dump_json().encode())

    def _send(self, line: bytes) -> bool:
        try:
            with self._sending:
                self._ours.sendall(line + b"\n")
        except OSError:
            return False
        return True

    def _report_alive(self) -> None:
        now = time.monotonic()
        if now - self._alive_at >= ALIVE_SECONDS:
            self._alive_at = now
            self._push([AnswerPiece(id=request, kind=AnswerPieceKind.ALIVE) for request in list(self._taken)])

    # Answers

    def _pass_answers(self) -> None:
        for pieces in self._pieces():
            try:
                self._push(pieces)
            except REDIS_ERRORS as error:
                self._failures.failed("cannot deliver a part of an answer: %s", error)
                for request in dict.fromkeys(piece.id for piece in pieces):
                    self._withdraw(request)
                    # Without these pieces, the answer would have a gap that its client could not notice.
                    self._end(request, "a part of the answer was lost, because Redis failed", is_answered=True)
        self._closing.set()
        self._is_ready.set()
        self._has_room.set()
        for request in list(self._taken):
            self._end(request, ENDED)

    def _pieces(self) -> Iterator[list[AnswerPiece]]:
        """Reads messages from the serving process until that process closes the socket or sends one that is too long.

        Yields the valid messages of each read. Each is a piece of an answer. Invalid messages are logged and dropped.
        """
        partial_line = b""
        while True:
            try:
                chunk = self._ours.recv(READ_BYTES)
            except OSError:
                return
            if not chunk:
                return
            *lines, partial_line = (partial_line + chunk).split(b"\n")
            if len(partial_line) > MAX_PIECE_BYTES:
                text = "the serving session %s sent more than %d MiB in one message, so its open requests end"
                log.warning(text, self._session, MAX_PIECE_BYTES // 1024**2)
                return
            yield [piece for line in lines if (piece := self._checked(line)) is not None]

    def _checked(self, line: bytes) -> AnswerPiece | None:
        try:
            piece = AnswerPiece.model_validate_json(line)
        except ValidationError:
            log.warning("the serving session %s sent a message that is not part of an answer: ignored", self._session)
            return None
        if not piece.id and piece.kind is AnswerPieceKind.ALIVE:
            self._is_ready.set()
            return None
        with self._guard:
            if piece.id not in self._taken:
                return None
            self._taken[piece.id] = True
            if piece.is_last:
                del self._taken[piece.id]
                self._has_room.set()
        return piece

    def _push(self, pieces: list[AnswerPiece]) -> None:
        if not pieces:
            return
        # All pieces or none: after a piece that Redis refuses, a later one must not arrive.
        with self._client.pipeline(transaction=True) as pipeline:
            for piece in pieces:
                clean_piece = piece.model_copy(update={"data": self._clean(piece.data)})
                pipeline.rpush(redis_keys.serving_answer(piece.id), clean_piece.model_dump_json())
                pipeline.expire(redis_keys.serving_answer(piece.id), redis_keys.SERVING_SECONDS)
            pipeline.execute()

    def _push_ends(self) -> None:
        while True:
            try:
                piece = self._ends.popleft()
            except IndexError:
                return
            try:
                self._push([piece])
            except REDIS_ERRORS:
                self._ends.appendleft(piece)
                raise

    def _end(self, request: str, why: str, *, is_answered: bool = False) -> None:
        """Ends a request whose answer cannot be completed. Later pieces of the answer are dropped.

        A request whose answer has begun gets an error. Any other request is sent to another session. `is_answered`:
        the process may have sent its last piece, which did not reach Redis.
        """
        with self._guard:
            is_started = self._taken.pop(request, True if is_answered else None)
        if is_started is None:
            return
        self._has_room.set()
        data = {"code": "serving_ended", "message": f"{why}: GET /jobs/{self._session} shows the session"}
        piece = AnswerPiece(id=request, kind=AnswerPieceKind.ERROR, data=data) if is_started else None
        self._ends.append(piece or AnswerPiece(id=request, kind=AnswerPieceKind.AGAIN))
        with suppress(*REDIS_ERRORS):
            self._push_ends()
