"""The server of the API: uvicorn, with websockets that are closed if their client does not read."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.utils import ClientDisconnected
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

from footplate.contract.errors import FootplateError, SettingsError, Unavailable
from service.http_timeouts import TimedProtocol
from service.settings import ServiceSettings

SOCKET = "footplate.socket"
"""The extension in a websocket's ASGI scope that has its connection."""
ACCEPTED_SUBPROTOCOL = "footplate.subprotocol"
"""The name in a websocket's ASGI scope under which the guard stores the subprotocol to accept."""
MAX_FRAME_BYTES = 8 * 1024
"""The most that a reader may send at once, in any number of frames. What readers send is ignored, but each frame costs
10 microseconds."""
READER_BYTES_PER_SECOND = 1024
WRITE_BUFFER_BYTES = 64 * 1024
UNREADABLE = b"HTTP/1.1 431 Request Header Fields Too Large\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
"""The answer to a websocket's handshake with an address or header of more than 8 KiB."""
CUT_SECONDS = 3.0
DEAD_PEER_SECONDS = 40
"""The time after which TCP gives up a peer that acknowledges nothing, or that accepts no data."""
GRACE_SECONDS = 3
_CLOSE_CODES = {401: 4401, 403: 4403, 404: 4404, 422: 4400, 429: 4429}


class Connection(WebSocketsSansIOProtocol):
    """A websocket that can send frames which were encoded once for many clients, and that can be closed at any time."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self.transport.set_write_buffer_limits(high=WRITE_BUFFER_BYTES)
        self._may_send, self._counted_at = float(MAX_FRAME_BYTES), self.loop.time()

    async def run_asgi(self) -> None:
        self.scope["extensions"][SOCKET] = {"connection": self}
        await super().run_asgi()

    def data_received(self, data: bytes) -> None:
        """Closes the websocket of a client that sends too much, before its frames are parsed. Refuses a bad handshake.

        The library neither answers a bad handshake nor closes its connection.
        """
        if self.handshake_complete and not self._has_room_for(len(data)):
            self.transport.pause_reading()
            self.cut(1009, f"the client sent more than {MAX_FRAME_BYTES} bytes at once")
            return
        super().data_received(data)
        if self.conn.handshake_exc is not None and not self.handshake_initiated:
            self.transport.write(UNREADABLE)
            self.transport.close()

    def _has_room_for(self, count: int) -> bool:
        now = self.loop.time()
        room = self._may_send + (now - self._counted_at) * READER_BYTES_PER_SECOND
        self._may_send, self._counted_at = min(room, MAX_FRAME_BYTES) - count, now
        # The header of a frame, at most 14 bytes, is not counted.
        return self._may_send > -64

    @property
    def can_write(self) -> bool:
        return self.writable.is_set()

    def write(self, frames: bytes) -> None:
        """Sends whole frames, made by `text_frame`. Callers check `can_write` first: unsent frames stay in memory."""
        if self.disconnected or self.close_sent:
            raise ClientDisconnected
        self.transport.write(frames)

    async def drain(self, within: float) -> None:
        """Waits until more can be written. Raises TimeoutError if the peer does not read."""
        async with asyncio.timeout(within):
            await self.writable.wait()

    def cut(self, code: int, reason: str) -> None:
        """Sends a close frame after the unsent frames, and ends the connection soon even if the peer does not read."""
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
    """Returns an unmasked text frame (RFC 6455 §5.2), whose bytes are the same for every reader."""
    length = len(text)
    if length < 126:
        return bytes((0x81, length)) + text
    if length < 65536:
        return b"\x81\x7e" + length.to_bytes(2) + text
    return b"\x81\x7f" + length.to_bytes(8) + text


def close_code(error: FootplateError) -> int:
    """Returns the code that closes a websocket for an error. 1012 makes clients reconnect."""
    return 1012 if isinstance(error, Unavailable) else _CLOSE_CODES.get(error.status, 4400)


def close_reason(text: str) -> str:
    """Returns the first 123 bytes of the text, which is all that fits into a close frame."""
    return text.encode()[:123].decode("utf-8", "ignore")


class Server(uvicorn.Server):
    """The server, which writes its URL to a file once it listens, and ends open streams before it stops."""

    def __init__(
        self, app: ASGIApp, settings: ServiceSettings, listener: socket.socket, on_stop: Callable[[], Awaitable[None]]
    ) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                http=TimedProtocol,
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
        """Leaves signals to the process, which has more to close than this server."""
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets=[self._listener])
        if self._url_file:
            self._url_file.parent.mkdir(parents=True, exist_ok=True)
            new_file = self._url_file.with_name(self._url_file.name + ".new")
            new_file.write_text(self.url + "\n")
            new_file.replace(self._url_file)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        if self._url_file:
            self._url_file.unlink(missing_ok=True)
        await self._on_stop()
        await super().shutdown(sockets)


def listen(settings: ServiceSettings) -> socket.socket:
    """Returns a bound socket. Its connections end when their peer no longer answers."""
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
    """Returns an address that this machine can open, also if the service listens on all addresses."""
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"http://{f'[{host}]' if ':' in host else host}:{listener.getsockname()[1]}"
