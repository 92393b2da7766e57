"""The server around the app: uvicorn, with sockets that cannot be held by who does not read."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.utils import ClientDisconnected
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

from footplate.contract.errors import SettingsError
from service.http_timeouts import PatientProtocol
from service.settings import ServiceSettings

SOCKET = "footplate.socket"
"""Where the scope of a websocket carries its connection."""
MAX_FRAME_BYTES = 8 * 1024
"""Also what a reader may send at once, in however many frames. Nothing that readers send means anything, but each frame
of it costs a turn of the event loop 10 microseconds."""
READER_BYTES_PER_SECOND = 1024
WRITE_BUFFER_BYTES = 64 * 1024
UNREADABLE = b"HTTP/1.1 431 Request Header Fields Too Large\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
"""An address or a header of a websocket's opening may have 8 KiB."""
CUT_SECONDS = 3.0
DEAD_PEER_SECONDS = 40
"""Unacknowledged, or acknowledged with a closed window, for this long: the peer is gone."""
GRACE_SECONDS = 3


class Connection(WebSocketsSansIOProtocol):
    """A websocket that can send bytes framed once for many, and can be cut when its peer does not read."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self.transport.set_write_buffer_limits(high=WRITE_BUFFER_BYTES)
        self._may_send, self._counted_at = float(MAX_FRAME_BYTES), self.loop.time()

    async def run_asgi(self) -> None:
        self.scope["extensions"][SOCKET] = {"connection": self}
        await super().run_asgi()

    def data_received(self, data: bytes) -> None:
        """An opening that cannot be read is answered: the library gives it up without a word, and so held it open. A
        reader that sends too much is cut before its frames are parsed."""
        if self.handshake_complete and not self._has_room_for(len(data)):
            self.transport.pause_reading()
            self.cut(1009, f"a reader may send {MAX_FRAME_BYTES} bytes at once")
            return
        super().data_received(data)
        if self.conn.handshake_exc is not None and not self.handshake_initiated:
            self.transport.write(UNREADABLE)
            self.transport.close()

    def _has_room_for(self, count: int) -> bool:
        now = self.loop.time()
        filled = self._may_send + (now - self._counted_at) * READER_BYTES_PER_SECOND
        self._may_send, self._counted_at = min(filled, MAX_FRAME_BYTES) - count, now
        # A frame of the largest size comes with a head of at most 14 bytes.
        return self._may_send > -64

    @property
    def can_write(self) -> bool:
        return self.writable.is_set()

    def write(self, frames: bytes) -> None:
        """Whole frames, as `text_frame` makes them. Look at `can_write` first: what is not sent is kept in memory."""
        if self.disconnected or self.close_sent:
            raise ClientDisconnected
        self.transport.write(frames)

    async def drain(self, within: float) -> None:
        """Until it can be written to again; TimeoutError when the peer does not read."""
        async with asyncio.timeout(within):
            await self.writable.wait()

    def cut(self, code: int, reason: str) -> None:
        """A close behind what is still unsent, and soon the end, whether or not anybody reads it."""
        if self.close_sent:
            return
        if not self.handshake_complete:
            self.transport.abort()
            return
        self.conn.send_close(code, reason)
        self.transport.write(b"".join(self.conn.data_to_send()))
        self.close_sent = True
        self.close_timer = self.loop.call_later(CUT_SECONDS, self.transport.abort)

    def keepalive_timeout(self) -> None:
        super().keepalive_timeout()
        self.transport.abort()


def text_frame(text: bytes) -> bytes:
    """One unmasked text frame (RFC 6455 §5.2): the same bytes for every reader."""
    length = len(text)
    if length < 126:
        return bytes((0x81, length)) + text
    if length < 65536:
        return b"\x81\x7e" + length.to_bytes(2) + text
    return b"\x81\x7f" + length.to_bytes(8) + text


def close_reason(text: str) -> str:
    """A close frame carries at most 123 bytes of it."""
    return text.encode()[:123].decode("utf-8", "ignore")


class Server(uvicorn.Server):
    """Says where it listens once it does; ends open streams before it waits for requests."""

    def __init__(
        self, app: ASGIApp, settings: ServiceSettings, listener: socket.socket, on_stop: Callable[[], Awaitable[None]]
    ) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                http=PatientProtocol,
                ws=Connection,
                ws_max_size=MAX_FRAME_BYTES,
                ws_per_message_deflate=False,
                ws_ping_interval=settings.ping_seconds,
                ws_ping_timeout=20,
                lifespan="off",
                access_log=False,
                log_config=None,
                server_header=False,
                proxy_headers=False,
                timeout_keep_alive=65,
                timeout_graceful_shutdown=GRACE_SECONDS,
            )
        )
        self._listener, self._on_stop = listener, on_stop
        self._url_file, self.url = settings.url_file, _url(settings.host, listener)

    def stop(self) -> None:
        self.should_exit = True

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Signals are the process's, which has more to close than this server."""
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets=[self._listener])
        if self._url_file:
            _write_atomically(self._url_file, self.url + "\n")

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        if self._url_file:
            self._url_file.unlink(missing_ok=True)
        await self._on_stop()
        await super().shutdown(sockets)


def listen(settings: ServiceSettings) -> socket.socket:
    """A bound socket whose connections end when their peer is gone, whoever serves them."""
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    for level, option, value in (
        (socket.SOL_SOCKET, socket.SO_REUSEADDR, 1),
        (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
        (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 15),
        (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 5),
        (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 4),
        (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, DEAD_PEER_SECONDS * 1000),
    ):
        listener.setsockopt(level, option, value)
    try:
        listener.bind((settings.host, settings.port))
    except OSError as error:
        listener.close()
        where = f"FOOTPLATE_HOST={settings.host}, FOOTPLATE_PORT={settings.port}"
        raise SettingsError(
            f"cannot listen on {where}: {error.strerror}. FOOTPLATE_PORT=0 takes any free port."
        ) from error
    listener.setblocking(False)
    return listener


def _url(host: str, listener: socket.socket) -> str:
    return f"http://{f'[{host}]' if ':' in host else host}:{listener.getsockname()[1]}"


def _write_atomically(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_name(path.name + ".new")
    new.write_text(text)
    new.replace(path)
