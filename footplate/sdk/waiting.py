"""The one difference between the two clients: one blocks while it waits.

Everything above this file is written once, as coroutines over a `Wire`. `AsyncWire` waits on the event loop. The
methods of `BlockingWire` block and never suspend, so that a coroutine over it is done after its first step. `now` makes
that step. No loop and no thread is involved, and `now` works inside a running loop, too.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager
from typing import Any, Protocol, TypeVar

import httpx2

T = TypeVar("T")
CHUNK_BYTES = 64 * 1024
OnBytes = Callable[[str, int, int], None]
"""Is called while a file is sent or fetched: with its name, the bytes so far, and the bytes of the whole file."""


class Line(Protocol):
    """An answer that is read as it comes. After 101 Switching Protocols, it can be written to as well."""

    response: httpx2.Response

    async def read(self, within: float) -> bytes:
        """Returns the next bytes, empty at the end. Raises httpx2.TransportError."""

    async def write(self, data: bytes) -> None: ...

    async def rest(self) -> bytes:
        """Returns all bytes that are still to come."""


class Wire(Protocol):
    tries: int
    """The number of tries for a request that may be repeated."""
    on_bytes: OnBytes | None

    def request(self, method: str, path: str, **more: Any) -> httpx2.Request: ...

    async def send(self, request: httpx2.Request) -> httpx2.Response:
        """Returns the answer with its body."""

    def open(self, request: httpx2.Request) -> Any:
        """Returns an async context manager that gives a Line."""

    async def sleep(self, seconds: float) -> None: ...

    async def close(self) -> None: ...


def now(coroutine: Coroutine[Any, Any, T]) -> T:
    """Returns the result of a coroutine over a BlockingWire."""
    try:
        coroutine.send(None)
    except StopIteration as done:
        result: T = done.value
        return result
    coroutine.close()
    raise RuntimeError("a blocking call was suspended, which is a bug in the SDK")


def each(items: AsyncGenerator[T, None]) -> Iterator[T]:
    """Yields the items of an async generator over a BlockingWire. Leaving the loop early closes it."""
    try:
        while True:
            try:
                item = now(anext(items))
            except StopAsyncIteration:
                return
            yield item
    finally:
        now(items.aclose())


# Blocking -----------------------------------------------------------------------------------------------------------


class BlockingWire:
    def __init__(self, client: httpx2.Client, tries: int, on_bytes: OnBytes | None = None) -> None:
        self._client, self.tries, self.on_bytes = client, tries, on_bytes

    def request(self, method: str, path: str, **more: Any) -> httpx2.Request:
        return self._client.build_request(method, path, **more)

    async def send(self, request: httpx2.Request) -> httpx2.Response:
        return self._client.send(request)

    @asynccontextmanager
    async def open(self, request: httpx2.Request) -> AsyncIterator[Line]:
        response = self._client.send(request, stream=True)
        try:
            yield _BlockingSocket(response) if response.status_code == 101 else _BlockingBody(response)
        finally:
            response.close()

    async def sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    async def close(self) -> None:
        self._client.close()


class _BlockingBody:
    def __init__(self, response: httpx2.Response) -> None:
        self.response = response
        self._chunks = response.iter_bytes()

    async def read(self, within: float) -> bytes:
        return next(self._chunks, b"")

    async def rest(self) -> bytes:
        return self.response.read()

    async def write(self, data: bytes) -> None:
        raise httpx2.LocalProtocolError("nothing can be written here")


class _Socket:
    async def rest(self) -> bytes:
        return b""  # The answer had no body.


class _BlockingSocket(_Socket):
    def __init__(self, response: httpx2.Response) -> None:
        self.response = response
        self._stream = response.extensions["network_stream"]

    async def read(self, within: float) -> bytes:
        try:
            return bytes(self._stream.read(CHUNK_BYTES, within))
        except _broken() as error:
            raise _ours(error) from error

    async def write(self, data: bytes) -> None:
        try:
            self._stream.write(data, WRITE_SECONDS)
        except _broken() as error:
            raise _ours(error) from error


# On the event loop --------------------------------------------------------------------------------------------------


class AsyncWire:
    def __init__(self, client: httpx2.AsyncClient, tries: int, on_bytes: OnBytes | None = None) -> None:
        self._client, self.tries, self.on_bytes = client, tries, on_bytes

    def request(self, method: str, path: str, **more: Any) -> httpx2.Request:
        return self._client.build_request(method, path, **more)

    async def send(self, request: httpx2.Request) -> httpx2.Response:
        return await self._client.send(request)

    @asynccontextmanager
    async def open(self, request: httpx2.Request) -> AsyncIterator[Line]:
        response = await self._client.send(request, stream=True)
        try:
            yield _AsyncSocket(response) if response.status_code == 101 else _AsyncBody(response)
        finally:
            await response.aclose()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def close(self) -> None:
        await self._client.aclose()


class _AsyncBody:
    def __init__(self, response: httpx2.Response) -> None:
        self.response = response
        self._chunks = response.aiter_bytes()

    async def read(self, within: float) -> bytes:
        return await anext(self._chunks, b"")

    async def rest(self) -> bytes:
        return await self.response.aread()

    async def write(self, data: bytes) -> None:
        raise httpx2.LocalProtocolError("nothing can be written here")


class _AsyncSocket(_Socket):
    def __init__(self, response: httpx2.Response) -> None:
        self.response = response
        self._stream = response.extensions["network_stream"]

    async def read(self, within: float) -> bytes:
        try:
            return bytes(await self._stream.read(CHUNK_BYTES, within))
        except _broken() as error:
            raise _ours(error) from error

    async def write(self, data: bytes) -> None:
        try:
            await self._stream.write(data, WRITE_SECONDS)
        except _broken() as error:
            raise _ours(error) from error


WRITE_SECONDS = 10.0


def _broken() -> tuple[type[Exception], ...]:
    """Returns httpcore's errors, because a stream raises them without httpx2's translation."""
    import httpcore2

    return httpcore2.TimeoutException, httpcore2.NetworkError


def _ours(error: Exception) -> httpx2.TransportError:
    timed_out, _ = _broken()
    if isinstance(error, timed_out):
        return httpx2.ReadTimeout("nothing was said for too long")
    return httpx2.ReadError(str(error) or type(error).__name__)
