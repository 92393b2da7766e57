"""Measures the time of an event from a worker to its readers' websockets, and a burst to 1,000 readers.

This process simulates a worker: it claims the attempt, and writes to the Redis stream what a supervisor would write.
Readers run in processes of their own, and each checks that every `no` arrives once and in order.
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import redis
import uvloop
from websockets.asyncio.client import connect

from bench import report
from bench.footprint import memory_mb
from bench.post import serve
from footplate.contract import redis_keys
from footplate.contract.events import now_text
from footplate.contract.ids import new_claim_id, new_node_id
from footplate.contract.messages import Claim, EventBatch, NodeBeat
from tests.support.processes import Process, Processes, until
from tests.support.redis_server import RedisServer


class SimulatedNode:
    """A simulated node with one running attempt."""

    def __init__(self, url: str, redis_url: str) -> None:
        import httpx2

        self.client = httpx2.Client(base_url=url, timeout=20)
        self.redis = redis.Redis.from_url(redis_url)
        self.node, self.claim, self.seq = new_node_id(), new_claim_id(), 0
        self.job = self.client.post("/jobs", json={"model": "toy/mlp", "data": "toy/regression"}).json()["id"]
        self._beat()
        until(lambda: self._job()["state"] == "starting", within=20, what="the job is placed")
        claim = Claim(job=self.job, attempt=1, fence=1, claim=self.claim, node=self.node, boot="b")
        self.redis.rpush(redis_keys.INBOX, claim.model_dump_json())
        assert self.redis.blpop([redis_keys.reply(self.claim)], 20)
        self.emit([{"kind": "state", "data": {"state": "running"}}])
        until(lambda: self._job()["state"] == "running", within=20, what="the job runs")

    def emit(self, events: list[dict[str, Any]]) -> None:
        lines = []
        for event in events:
            self.seq += 1
            lines.append({"seq": self.seq, "at": now_text(), **event})
        batch = EventBatch(job=self.job, attempt=1, fence=1, claim=self.claim, source=0, events=lines)
        self.redis.xadd(redis_keys.EVENTS, {"batch": batch.model_dump_json()})

    def _beat(self) -> None:
        beat = NodeBeat(node=self.node, boot="b", number=1, name="played", slots=1)
        self.redis.rpush(redis_keys.INBOX, beat.model_dump_json())

    def _job(self) -> dict[str, Any]:
        return dict(self.client.get(f"/jobs/{self.job}").json())


def run(folder: Path, *, quick: bool = False) -> list[report.Row]:
    rows = []
    for readers, per_second in ((1, 2000), (200, 10)):
        rows += _latency(folder / f"readers-{readers}", readers, per_second, 2 if quick else 10)
    return rows + _burst(folder / "burst", 200 if quick else 1000, 2000 if quick else 10_000)


def _latency(folder: Path, readers: int, per_second: int, seconds: int) -> list[report.Row]:
    with_system = _System(folder)
    try:
        played = with_system.played
        group = with_system.read(readers, processes=1)
        start = time.perf_counter()
        for n in range(per_second * seconds):
            # Waits until each event is due, so that a slow start does not become a burst.
            if (wait := start + n / per_second - time.perf_counter()) > 0:
                time.sleep(wait)
            played.emit([{"kind": "log", "step": n, "data": {"loss": 1.0, "sent": time.time()}}])
        results = with_system.end(group)
    finally:
        with_system.close()
    lags = sorted(lag for result in results for lag in result["lags"])
    name = f"event → {readers} reader{'s' * (readers > 1)}, {per_second * readers:,} messages/s in all"
    return [
        report.Row(f"{name}: p50", [lags[len(lags) // 2]], "ms", "≤ 15"),
        report.Row(f"{name}: p99", [lags[int(len(lags) * 0.99)]], "ms", "≤ 60"),
    ]


def _burst(folder: Path, readers: int, events: int) -> list[report.Row]:
    with_system = _System(folder, apart=True)
    try:
        group = with_system.read(readers, processes=2)
        for first_step in range(0, events, 200):
            with_system.played.emit(
                [{"kind": "log", "step": n, "data": {"loss": 1.0}} for n in range(first_step, first_step + 200)]
            )
        results = with_system.end(group)
        resident = memory_mb(with_system.service.pid)
    finally:
        with_system.close()
    seconds = max(result["last"] for result in results) - min(result["first"] for result in results)
    name = f"burst of {events:,} events to {readers:,} readers"
    return [
        report.Row(name, [readers * events / seconds], "events/s", "≥ 150,000"),
        report.Row(f"{name}: memory of the process that serves them", [resident], "MB", "≤ 150"),
    ]


def _is_ready(readers: Process) -> bool:
    return "ready" in readers.output


class _System:
    """A service and a Redis. With `apart`, control is a process of its own, as on several machines."""

    def __init__(self, folder: Path, *, apart: bool = False) -> None:
        folder.mkdir(parents=True)
        self.processes, self.redis = Processes(folder), RedisServer().start()
        env = {"FOOTPLATE_REDIS": self.redis.url, "FOOTPLATE_LEASE_SECONDS": "600"}
        database = f"sqlite:///{folder / 'b.db'}"
        self.service, port = serve(self.processes, folder, database, role="api" if apart else "all", **env)
        if apart:
            control = {**env, "FOOTPLATE_HOME": folder, "FOOTPLATE_DATABASE": database}
            self.processes.start("-m", "service", "control", env=control)
        self.url = f"http://127.0.0.1:{port}"
        self.played = SimulatedNode(self.url, self.redis.url)

    def read(self, readers: int, processes: int) -> list[Process]:
        address = f"{self.url.replace('http', 'ws')}/jobs/{self.played.job}/stream"
        share = str(readers // processes)
        group = [self.processes.start("-m", "bench.readers", address, share, name="reader") for _ in range(processes)]
        for reader in group:
            reader.until(partial(_is_ready, reader), within=60, what="readers are caught up")
        return group

    def end(self, group: list[Process]) -> list[dict[str, Any]]:
        data = {"ending": "finished", "reason": "completed"}
        self.played.emit([{"kind": "done", "data": data}])
        for reader in group:
            assert reader.wait(120) == 0, reader.output
        return [json.loads(reader.output.splitlines()[-1]) for reader in group]

    def close(self) -> None:
        self.processes.stop_all()
        self.redis.close()


_NO, _SENT = re.compile(r'"no":(\d+)'), re.compile(r'"sent":\s*([\d.]+)')


class Reader:
    """One websocket, read to the end of the job. Frames are only searched, because the service needs the cores."""

    def __init__(self, after: int) -> None:
        self.no = after
        self.lags: list[float] = []
        self.first = self.last = 0.0
        self.caught_up = asyncio.Event()

    async def read(self, address: str) -> None:
        message: str | bytes = ""
        async with connect(address, max_size=None, compression=None, ping_interval=None) as socket:
            async for message in socket:
                assert isinstance(message, str)
                if message.startswith('{"events"'):
                    self._take(message)
                elif message.startswith('{"caught_up"'):
                    self.caught_up.set()
        assert isinstance(message, str)
        assert message.startswith('{"end"'), f"closed with {socket.close_code}: {socket.close_reason}"

    def _take(self, message: str) -> None:
        numbers = [int(number) for number in _NO.findall(message)]
        assert numbers == list(range(self.no + 1, self.no + 1 + len(numbers))), f"{numbers[:3]} after {self.no}"
        self.no = numbers[-1]
        if self.caught_up.is_set():
            self.last = time.time()
            self.first = self.first or self.last
            self.lags += [1000 * (self.last - float(sent_at)) for sent_at in _SENT.findall(message)]


async def _read(address: str, count: int) -> None:
    """Runs the readers of one process, and prints their results."""
    last_no = int(address.partition("?after=")[2] or 0)
    readers = [Reader(last_no) for _ in range(count)]
    async with asyncio.TaskGroup() as group:
        for reader in readers:
            group.create_task(reader.read(address))
            await reader.caught_up.wait()
        print("ready", flush=True)
    first_at, last_at = min(reader.first for reader in readers), max(reader.last for reader in readers)
    print(json.dumps({"lags": [lag for reader in readers for lag in reader.lags], "first": first_at, "last": last_at}))


if __name__ == "__main__":
    uvloop.run(_read(sys.argv[1], int(sys.argv[2])))
