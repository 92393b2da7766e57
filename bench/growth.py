"""Measures whether POST, pages of jobs, pages of the queue and placement become slower as the queue grows.

Two services with control take turns in one run. The queue of one is empty, and that of the other grows to 100,000
waiting jobs. POST is also compared by the service's CPU time. The plot shows the fastest of many answers, because the
others were delayed by other work of the machine. The full form writes it to docs/growth.svg.
"""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path
from statistics import quantiles
from typing import Any

import httpx2
from sqlalchemy import make_url, text

from bench import plot, report
from bench.post import SPEC, cpu_seconds, database_url, load, serve
from service.jobs.place import plan_queue
from service.store.database import Database
from tests.conformance.acting import Stage
from tests.support.many_jobs import copy_job
from tests.support.processes import Processes
from tests.support.redis_server import RedisServer

PLOT = Path(__file__).parents[1] / "docs" / "growth.svg"
SIZES = (100, 1_000, 10_000, 100_000)
ROUNDS = 20
RATE, PACED_SECONDS = 200, 3
Points = dict[str, list[float]]


class Side:
    """One service with control, and its database."""

    def __init__(self, processes: Processes, home: Path, url: str, redis: str) -> None:
        self.processes, self.url = processes, url
        self.server, self.port = serve(processes, home, url, role="all", FOOTPLATE_REDIS=redis)
        self.db = Database(url)
        self.client = httpx2.Client(base_url=f"http://127.0.0.1:{self.port}", timeout=60)

    def post(self, seconds: float) -> dict[str, float]:
        """Posts with 16 connections. The jobs are deleted afterwards, so that each round has an equal queue."""
        cpu_before = cpu_seconds(self.server.pid)
        figures = load(self.processes, self.port, seconds)
        assert not figures["errors"], figures
        cpu_us = 1e6 * (cpu_seconds(self.server.pid) - cpu_before) / figures["count"]
        self.db.write_now(lambda conn: conn.execute(text("DELETE FROM jobs WHERE name = ''")))
        return {**figures, "cpu_us": cpu_us}

    def end_of_filling(self) -> None:
        """Empties SQLite's log, because one huge transaction has made it longer than any service would."""
        if self.db.dialect == "sqlite":
            with closing(sqlite3.connect(str(make_url(self.url).database), timeout=60)) as line:
                line.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    def took(self, ask: Callable[[], Any]) -> list[float]:
        milliseconds = []
        for _ in range(ROUNDS):
            start = time.perf_counter()
            ask()
            milliseconds.append(1000 * (time.perf_counter() - start))
        return milliseconds

    def get(self, path: str) -> None:
        answer = self.client.get(path)
        assert answer.status_code == 200, answer.text

    def close(self) -> None:
        self.client.close()
        self.db.close()


def run(folder: Path, *, quick: bool = False) -> list[report.Row]:
    rounds, seconds = (2, 1.0) if quick else (4, 2.5)
    sizes = SIZES[:3] if quick else SIZES
    rows: list[report.Row] = []
    panels: dict[str, Points] = {}
    for database in ("sqlite", "postgres"):
        measured, panels[database] = _measure(folder / database, database, sizes, rounds, seconds)
        rows += measured
    if not quick:
        PLOT.write_text(plot.svg(list(sizes), panels, "waiting jobs", "ms"))
    return rows


def _measure(
    folder: Path, database: str, sizes: tuple[int, ...], rounds: int, seconds: float
) -> tuple[list[report.Row], Points]:
    rows: list[report.Row] = []
    points: Points = {
        "POST (service CPU)": [],
        "a page of jobs": [],
        "a page of the queue": [],
        "one placement run": [],
    }
    processes, redis = Processes(folder), [RedisServer().start() for _ in range(2)]
    with ExitStack() as stack:
        stack.callback(lambda: [server.close() for server in redis])
        stack.callback(processes.stop_all)
        names = ("none", "many")
        for name in names:
            (folder / name).mkdir(parents=True)
        none, many = (
            Side(
                processes,
                folder / name / "home",
                stack.enter_context(database_url(database, folder / name)),
                server.url,
            )
            for name, server in zip(names, redis, strict=True)
        )
        stack.callback(none.close)
        stack.callback(many.close)
        template = Stage(many.db).submit(name="a-run", resources={"pool": "nowhere"})
        for side in (none, many):
            side.post(1.0)
        job_count = 1
        for size in sizes:
            copy = partial(copy_job, job=template, first=job_count + 1, last=size, priority="n % 7 - 3")
            many.db.write_now(copy)
            job_count = size
            many.end_of_filling()
            for side in (none, many):
                side.db.write_now(lambda conn: conn.execute(text("ANALYZE")))
            pairs = [_pair(none, many, seconds, is_turned=bool(number % 2)) for number in range(rounds)]
            what = f"{database}, {size:,} waiting"
            rates = [of_many["per_second"] / of_none["per_second"] for of_none, of_many in pairs]
            costs = [of_none["cpu_us"] / of_many["cpu_us"] for of_none, of_many in pairs]
            listing_ms = many.took(lambda: many.get("/jobs?limit=50"))
            urgent_ms = many.took(lambda: many.get("/jobs?limit=50&state=queued&sort=-priority"))
            queue_ms = many.took(lambda: many.get("/queue?limit=50"))
            placement_ms = many.took(lambda: many.db.read_now(plan_queue))
            rows += [
                report.Row(f"{what}: POST, relative to POST with an empty queue", rates, "×", "≥ 0.8"),
                report.Row(f"{what}: the same by the service's CPU time", costs, "×", "≥ 0.8"),
                report.Row(f"{what}: POST", [figures["per_second"] for _, figures in pairs], "/s"),
                report.Row(f"{what}: one placement run", placement_ms, "ms", "≤ 20"),
                report.Row(f"{what}: GET /queue", queue_ms, "ms", "≤ 20"),
                report.Row(f"{what}: GET /jobs", listing_ms, "ms", "≤ 20"),
                report.Row(f"{what}: GET /jobs, those waiting by priority", urgent_ms, "ms", "≤ 20"),
            ]
            costs_ms = [figures["cpu_us"] / 1000 for _, figures in pairs]
            for name, values in zip(points, (costs_ms, listing_ms, queue_ms, placement_ms), strict=True):
                points[name].append(min(values))
        paced = [asyncio.run(_paced(many.port)) for _ in range(rounds)]
        rows += [
            report.Row(
                f"{database}, none waiting: POST", [figures["per_second"] for figures, _ in pairs], "/s", "≥ 1,000"
            ),
            report.Row(f"{what}: POST at {RATE}/s, p99", paced, "ms", "≤ 50"),
        ]
    return rows, points


def _pair(none: Side, many: Side, seconds: float, *, is_turned: bool) -> tuple[dict[str, float], dict[str, float]]:
    if is_turned:
        figures = many.post(seconds)
        return none.post(seconds), figures
    return none.post(seconds), many.post(seconds)


async def _paced(port: int) -> float:
    """Returns the 99th percentile in ms, for a client that keeps its rate even if answers are late."""
    milliseconds: list[float] = []

    async def post(client: httpx2.AsyncClient) -> None:
        start = time.perf_counter()
        answer = await client.post("/jobs", content=SPEC, headers={"Content-Type": "application/json"})
        milliseconds.append(1000 * (time.perf_counter() - start))
        assert answer.status_code == 201, answer.text

    async with httpx2.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=60) as client:
        began = time.perf_counter()
        async with asyncio.TaskGroup() as group:
            for number in range(PACED_SECONDS * RATE):
                await asyncio.sleep(began + number / RATE - time.perf_counter())
                group.create_task(post(client))
    return quantiles(milliseconds, n=100)[98]
