"""Posts a job over kept connections, as fast as it is answered: `python -m bench.load`, in its own process."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from functools import partial
from typing import cast

import uvloop


class Client(asyncio.Protocol):
    """One connection, which sends the next request when the last answer is complete."""

    def __init__(self, request: bytes, until: float, latencies: list[float], over: asyncio.Future[None]) -> None:
        self.request, self.until, self.latencies, self.over = request, until, latencies, over
        self.buffer = b""
        self.errors = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self._send()

    def _send(self) -> None:
        self.sent_at = time.perf_counter()
        self.transport.write(self.request)

    def data_received(self, data: bytes) -> None:
        self.buffer += data
        head, end_of_head, body = self.buffer.partition(b"\r\n\r\n")
        if not end_of_head or len(body) < int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0]):
            return
        self.latencies.append(time.perf_counter() - self.sent_at)
        self.errors += not head.startswith(b"HTTP/1.1 20")
        self.buffer = b""
        if time.perf_counter() < self.until:
            self._send()
        else:
            self.transport.close()

    def connection_lost(self, error: Exception | None) -> None:
        if not self.over.done():
            self.over.set_result(None)


async def load(port: int, body: bytes, connections: int, seconds: float, key: str = "") -> dict[str, float]:
    lines = f"POST /jobs HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n"
    if key:
        lines += f"Authorization: Bearer {key}\r\n"
    lines += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n"
    request = lines.encode() + b"\r\n" + body
    loop, latencies, clients = asyncio.get_running_loop(), list[float](), list[Client]()
    start = time.perf_counter()
    for _ in range(connections):
        make_client = partial(Client, request, start + seconds, latencies, loop.create_future())
        _, client = await loop.create_connection(make_client, "127.0.0.1", port)
        clients.append(client)
    await asyncio.gather(*(client.over for client in clients))
    return _figures(latencies, time.perf_counter() - start, sum(client.errors for client in clients))


async def load_with_httpx2(port: int, body: bytes, connections: int, seconds: float, key: str = "") -> dict[str, float]:
    """Does the same with httpx2, which users use. It is slower than both servers, so their ratio hardly shows."""
    import httpx2

    latencies, errors, start = list[float](), 0, time.perf_counter()
    headers = {"Content-Type": "application/json"}
    if key:
        headers["Authorization"] = f"Bearer {key}"
    async with httpx2.AsyncClient(base_url=f"http://127.0.0.1:{port}", headers=headers) as client:

        async def send_all() -> None:
            nonlocal errors
            while (sent_at := time.perf_counter()) < start + seconds:
                answer = await client.post("/jobs", content=body)
                errors += not answer.is_success
                latencies.append(time.perf_counter() - sent_at)

        await asyncio.gather(*(send_all() for _ in range(connections)))
    return _figures(latencies, time.perf_counter() - start, errors)


def _figures(latencies: list[float], seconds: float, errors: int) -> dict[str, float]:
    latencies.sort()
    return {
        "count": len(latencies),
        "per_second": len(latencies) / seconds,
        "p50_ms": 1000 * latencies[len(latencies) // 2],
        "p99_ms": 1000 * latencies[int(len(latencies) * 0.99)],
        "errors": errors,
    }


if __name__ == "__main__":
    client_name, port, body, connections, seconds, *key = sys.argv[1:]
    load_by_client = {"raw": load, "httpx2": load_with_httpx2}[client_name]
    loading = load_by_client(int(port), body.encode(), int(connections), float(seconds), *key)
    print(json.dumps(uvloop.run(loading)))
