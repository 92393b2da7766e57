"""Limits the time and the size of incoming HTTP requests, because uvicorn has no such limits.

uvicorn waits for ever for the rest of a request, and accepts headers of any size.
"""

from __future__ import annotations

import asyncio
from typing import Literal

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

HEAD_SECONDS = 10.0
"""The time from the connection, or from the first byte of a request, to the end of its headers."""
HEAD_BYTES = 64 * 1024
BODY_SECONDS = 20.0
BODY_BYTES = 10 * 1024
"""The least that must arrive of a body in each BODY_SECONDS, which is 512 bytes a second."""

MOST_PIPELINED = 32
"""The most requests that a connection may send before the first is answered, because all of them are parsed at once."""


class TimedProtocol(HttpToolsProtocol):
    """The HTTP protocol of uvicorn, with limits on the time and the size of a request."""

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
            # Only line ends have arrived. They have stopped uvicorn's timer for idle connections, so ours starts.
            self._waits_for = "head"
        if self._waits_for is None:
            self._set_limit(None)
        elif self._waits_for == "head" and self._came > HEAD_BYTES:
            self._refuse(b"431 Request Header Fields Too Large")
        elif self._limit is None:
            self._set_limit(HEAD_SECONDS if self._waits_for == "head" else BODY_SECONDS)

    def on_message_begin(self) -> None:
        if len(self.pipeline) >= MOST_PIPELINED:
            # This error stops the parser. uvicorn then answers 400 and closes the connection.
            raise ValueError(f"the client sent more than {MOST_PIPELINED} requests before the first was answered")
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
        """Sends a status and closes the connection, because the app cannot answer an incomplete request."""
        self._set_limit(None)
        if self._is_at_rest and not self.transport.is_closing():
            self.transport.write(b"HTTP/1.1 " + status + b"\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
        self.transport.close()

    @property
    def _is_at_rest(self) -> bool:
        """True while no answer is being written."""
        return self.cycle is None or self.cycle.response_complete
