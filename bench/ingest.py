"""Measures how fast events go from workers' journals into SQL, with the real sender, Redis, and control's ingest.

Journals are filled beforehand. The time is from the first XADD until the last journal's events are acknowledged.
Afterwards SQL must have every (attempt, source, seq) once, and no gap in `no`.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path

import redis
from sqlalchemy import create_engine, text

from bench import report
from bench.footprint import memory_mb
from bench.post import cpu_seconds, database_url, serve
from bench.readers import SimulatedNode
from footplate.contract.events import Kind, now_text
from footplate.contract.ids import Fence
from tests.support.processes import Processes
from tests.support.redis_server import RedisServer
from worker.attempt.control_link import Sender
from worker.attempt.journal import Journal, JournalName

BARS = {"sqlite": 20_000, "postgres": 12_000}
ATTEMPTS = 4
"""The attempts that run at the same time, each with a journal of its own."""


def run(folder: Path, *, quick: bool = False) -> list[report.Row]:
    rounds, events = (2, 10_000) if quick else (3, 40_000)
    rows = []
    for database in BARS:
        with database_url(database, folder) as url:
            if url:
                rows += _measure(folder / database, database, url, rounds, events)
    return rows


def _measure(folder: Path, database: str, url: str, rounds: int, events: int) -> list[report.Row]:
    folder.mkdir()
    processes, server = Processes(folder), RedisServer().start()
    rates, cpu = list[float](), list[float]()
    try:
        env = {"FOOTPLATE_REDIS": server.url, "FOOTPLATE_LEASE_SECONDS": "600"}
        service, port = serve(processes, folder / "home", url, role="all", **env)
        client = redis.Redis.from_url(server.url, protocol=2)
        for _ in range(rounds):
            played = [SimulatedNode(f"http://127.0.0.1:{port}", server.url) for _ in range(ATTEMPTS)]
            senders = [_filled(folder, attempt, events) for attempt in played]
            cpu_before, start = cpu_seconds(service.pid), time.perf_counter()
            _send(client, senders)
            seconds = time.perf_counter() - start
            rates.append(ATTEMPTS * events / seconds)
            cpu.append(1e6 * (cpu_seconds(service.pid) - cpu_before) / (ATTEMPTS * events))
            _verify(url, played, events)
        resident = memory_mb(service.pid)
    finally:
        processes.stop_all()
        server.close()
    name = f"journal → Redis → {database}, acknowledged, exactly once"
    return [
        report.Row(f"{name}: {ATTEMPTS} attempts × {events:,} events", rates, "events/s", f"≥ {BARS[database]:,}"),
        report.Row(f"{name}: the service's CPU time for each", cpu, "µs"),
        report.Row(f"{name}: memory of the service then", [resident], "MB"),
    ]


def _filled(folder: Path, played: SimulatedNode, events: int) -> Sender:
    """Fills the journal of a simulated attempt. Its first event, which reports that it runs, is in SQL already."""
    journal = Journal.create(
        folder, JournalName(job=played.job, attempt=1, fence=Fence(1), claim=played.claim), max_mb=1024
    )
    journal.append([{"kind": Kind.STATE, "at": now_text(), "data": {"state": "running"}}])
    for first_step in range(1, events, 1000):
        journal.append([_log(step) for step in range(first_step, min(first_step + 1000, events))])
    return Sender(journal, watermark=played.seq)


def _log(step: int) -> dict[str, object]:
    data = {"loss": 2.5 / step, "learning_rate": 5e-5, "grad_norm": 1.25}
    return {"kind": Kind.LOG, "at": now_text(), "step": step, "epoch": step / 1000, "data": data}


def _send(client: redis.Redis, senders: Sequence[Sender]) -> None:
    """Sends like supervisors do, but in turn. A window of each journal is always unacknowledged."""
    deadline = time.monotonic() + 300
    while unfinished_senders := [sender for sender in senders if sender.acknowledged < sender.journal.last]:
        assert time.monotonic() < deadline, "events are not acknowledged"
        for sender in unfinished_senders:
            sender.exchange(client)
        if not any(sender.has_more for sender in unfinished_senders):
            time.sleep(0.005)


def _verify(url: str, played: Sequence[SimulatedNode], events: int) -> None:
    engine = create_engine(url)
    with engine.connect() as conn:
        for attempt in played:
            query = text("SELECT no, attempt, source, seq, data FROM events WHERE job_id = :job ORDER BY no")
            rows = conn.execute(query, {"job": attempt.job}).all()
            assert [row.no for row in rows] == list(range(1, len(rows) + 1)), f"{attempt.job}: `no` has holes"
            from_worker = [row for row in rows if row.source == 0]
            assert [(row.attempt, row.seq) for row in from_worker] == [(1, seq) for seq in range(1, events + 1)], (
                attempt.job
            )
            assert json.loads(from_worker[-1].data)["grad_norm"] == 1.25
    engine.dispose()
