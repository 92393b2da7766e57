"""HTTP whose requests come in time: who sends a byte a minute holds no connection, and nobody sends endless headers.

The server below waits for ever for the rest of a request, and takes a head of any size.
"""

from __future__ import annotations

import asyncio
from typing import Literal

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

HEAD_SECONDS = 10.0
"""From a connection, or the first byte of a request, to the end of its headers."""
HEAD_BYTES = 64 * 1024
BODY_SECONDS = 20.0
BODY_BYTES = 10 * 1024
"""In any BODY_SECONDS of a body at least so much comes; slower lines than 512 bytes a second train nothing."""

MOST_PIPELINED = 32
"""Requests that a connection may send before the first is answered. All that were read at once are parsed at once."""


class PatientProtocol(HttpToolsProtocol):
    """Patient within limits."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._waits_for: Literal["head", "body", None] = "head"
        self._came = 0
        self._is_websocket = False
        self._limit: asyncio.TimerHandle | None = self.loop.call_later(HEAD_SECONDS, self._late)

    def data_received(self, data: bytes) -> None:
        self._came += len(data)
        super().data_received(data)
        if self._is_websocket:
            return
        if self._waits_for is None and self._is_at_rest:
            # Line ends that belong to no request: they ended the server's own patience with an idle connection.
            self._waits_for = "head"
        if self._waits_for is None:
            self._set_limit(None)
        elif self._waits_for == "head" and self._came > HEAD_BYTES:
            self._refuse(b"431 Request Header Fields Too Large")
        elif self._limit is None:
            self._set_limit(HEAD_SECONDS if self._waits_for == "head" else BODY_SECONDS)

    def on_message_begin(self) -> None:
        if len(self.pipeline) >= MOST_PIPELINED:
            # The parser stops, and the server below answers 400 and closes.
            raise ValueError(f"more than {MOST_PIPELINED} requests before the first is answered")
        super().on_message_begin()
        self._waits_for = "head"

    def on_headers_complete(self) -> None:
        super().on_headers_complete()
        self._waits_for, self._came = "body", 0
        self._set_limit(None)

    def on_message_complete(self) -> None:
        super().on_message_complete()
        self._waits_for, self._came = None, 0

    def handle_websocket_upgrade(self) -> None:
        self._is_websocket = True
        self._set_limit(None)
        super().handle_websocket_upgrade()

    def connection_lost(self, exc: Exception | None) -> None:
        self._set_limit(None)
        super().connection_lost(exc)

    def _set_limit(self, seconds: float | None) -> None:
        if self._limit is not None:
            self._limit.cancel()
        self._limit = None if seconds is None else self.loop.call_later(seconds, self._late)

    def _late(self) -> None:
        self._limit = None
        if self._waits_for == "head":
            self._refuse(b"408 Request Timeout")
        elif self._waits_for == "body" and self._came < BODY_BYTES and not self.flow.read_paused:
            self.transport.abort()
        elif self._waits_for == "body":
            self._came = 0
            self._set_limit(BODY_SECONDS)

    def _refuse(self, status: bytes) -> None:
        """There is no request yet that could be answered by anybody else."""
        self._set_limit(None)
        if self._is_at_rest and not self.transport.is_closing():
            self.transport.write(b"HTTP/1.1 " + status + b"\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
        self.transport.close()

    @property
    def _is_at_rest(self) -> bool:
        """No answer is being written."""
        return self.cycle is None or self.cycle.response_complete
