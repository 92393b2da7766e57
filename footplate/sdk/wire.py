"""`Wire` sends requests for both clients: `AsyncWire` waits on the event loop, and `BlockingWire` blocks.

All operations are written once, as coroutines that use a `Wire`. The methods of `BlockingWire` block and never suspend,
so that a coroutine is finished after its first step. `now` makes this step, without an event loop or a thread. It also
works inside of a running event loop.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager
from operator import methodcaller
from typing import Any, TypeVar

import httpx2

T = TypeVar("T")
CHUNK_BYTES = 64 * 1024
WRITE_SECONDS = 10.0
OnBytes = Callable[[str, int, int], None]
"""A function that is called during uploads and downloads, with a file's name, its bytes so far and its size."""


def run(coroutine: Coroutine[Any, Any, T]) -> T:
    """Runs a coroutine that uses a BlockingWire, and returns its result."""
    try:
        coroutine.send(None)
    except StopIteration as stop:
        result: T = stop.value
        return result
    coroutine.close()
    raise RuntimeError("a blocking call was suspended, which is a bug in the SDK")


def iterate(items: AsyncGenerator[T, None]) -> Iterator[T]:
    """Yields the items of an async generator that uses a BlockingWire, and closes it at the end."""
    try:
        while True:
            try:
                item = run(anext(items))
            except StopAsyncIteration:
                return
            yield item
    finally:
        run(items.aclose())


class Wire:
    """Sends requests by an httpx2 client. The subclasses either block or await its calls."""

    _sleep: Callable[[float], Any]
    _close: Callable[[Any], Any]
    """A function that closes the client or an answer."""
    _chunks: Callable[[httpx2.Response], Any]
    _next: Callable[..., Any]

    def __init__(self, client: Any, tries: int, on_bytes: OnBytes | None = None) -> None:
        """Takes an httpx2 client. `tries` limits how often a request that may be repeated is sent."""
        self._client, self.tries, self.on_bytes = client, tries, on_bytes

    async def result(self, value: Any) -> Any:
        """Returns the result of a call of the httpx2 client. `AsyncWire` awaits the call first."""
        return value

    def request(self, method: str, path: str, **options: Any) -> httpx2.Request:
        request: httpx2.Request = self._client.build_request(method, path, **options)
        return request

    async def send(self, request: httpx2.Request) -> httpx2.Response:
        """Returns the answer with its body."""
        answer: httpx2.Response = await self.result(self._client.send(request))
        return answer

    @asynccontextmanager
    async def open(self, request: httpx2.Request) -> AsyncIterator[OpenAnswer]:
        """Yields an answer whose body is not read yet."""
        answer = await self.result(self._client.send(request, stream=True))
        try:
            yield OpenAnswer(self, answer)
        finally:
            await self.result(self._close(answer))

    async def sleep(self, seconds: float) -> None:
        await self.result(self._sleep(seconds))

    async def close(self) -> None:
        await self.result(self._close(self._client))


class BlockingWire(Wire):
    _sleep, _next = staticmethod(time.sleep), staticmethod(next)
    _close, _chunks = methodcaller("close"), methodcaller("iter_bytes")


class AsyncWire(Wire):
    _sleep, _next = staticmethod(asyncio.sleep), staticmethod(anext)
    _close, _chunks = methodcaller("aclose"), methodcaller("aiter_bytes")

    async def result(self, value: Any) -> Any:
        return await value


class OpenAnswer:
    """An answer whose body is read in chunks. After 101 Switching Protocols, bytes can also be written."""

    def __init__(self, wire: Wire, response: httpx2.Response) -> None:
        self.response = response
        self._wire, self._chunks = wire, wire._chunks(response)
        self._socket = response.extensions["network_stream"] if response.status_code == 101 else None

    async def read(self, timeout_seconds: float) -> bytes:
        """Returns the next bytes, empty at the end. Raises httpx2.TransportError.

        `timeout_seconds` applies to a socket, which is open after 101 Switching Protocols. For a body, the timeout of
        its request applies.
        """
        with _errors_of_httpx():
            if self._socket is None:
                data = self._wire._next(self._chunks, b"")
            else:
                data = self._socket.read(CHUNK_BYTES, timeout_seconds)
            return bytes(await self._wire.result(data))

    async def write(self, data: bytes) -> None:
        assert self._socket is not None, "only a socket is written to"
        with _errors_of_httpx():
            await self._wire.result(self._socket.write(data, WRITE_SECONDS))

    async def complete(self) -> httpx2.Response:
        """Reads the body to its end, and returns the answer with this body."""
        chunks = []
        while chunk := await self.read(0):
            chunks.append(chunk)
        return httpx2.Response(self.response.status_code, content=b"".join(chunks), request=self.response.request)


@contextmanager
def _errors_of_httpx() -> Iterator[None]:
    """Translates httpcore's errors into httpx2's, because reading a socket raises httpcore's."""
    import httpcore2

    try:
        yield
    except httpcore2.TimeoutException as error:
        raise httpx2.ReadTimeout("no bytes arrived in time") from error
    except httpcore2.NetworkError as error:
        raise httpx2.ReadError(str(error) or type(error).__name__) from error
