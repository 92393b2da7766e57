"""Compares POST /jobs with an empty FastAPI route, over 16 connections and with one process each.

It measures twice: with a raw client that saturates both servers, and with httpx2, which is slower than both.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx2

from bench import report
from tests.support.postgres import PostgresServer, programs
from tests.support.processes import Process, Processes, free_port, until
from tests.support.redis_server import RedisServer

SPEC = json.dumps({"model": "toy/mlp", "data": "toy/regression"})
CONNECTIONS = 16
Environment = dict[str, str | Path | int | float]
BARS = {"sqlite": 0.5, "postgres": 0.35}


def run(folder: Path, *, quick: bool = False) -> list[report.Row]:
    rounds, seconds = (2, 1.5) if quick else (3, 4.0)
    rows = []
    for database in ("sqlite", "postgres"):
        with database_url(database, folder) as url:
            if url:
                rows += _compare(folder, database, url, rounds, seconds)
    return rows


def _compare(folder: Path, database: str, url: str, rounds: int, seconds: float) -> list[report.Row]:
    """Measures three servers in turn: one without keys, one with keys, and the empty route."""
    folder /= database
    folder.mkdir()
    processes, redis = Processes(folder), RedisServer().start()
    rows = []
    try:
        sides = [
            (*serve(processes, folder / "open", url, FOOTPLATE_REDIS=redis.url), ""),
            _guarded(processes, folder / "guarded", url, redis.url),
            (*_noop(processes), ""),
        ]
        for client in ("raw", "httpx2"):
            for _, port, key in sides:
                load(processes, port, 1.0, client, key)
            turns = [[_measured(processes, *side, seconds, client) for side in sides] for _ in range(rounds)]
            assert not any(figures["errors"] for turn in turns for figures in turn), turns
            name = f"POST /jobs, {database}, {client} client"
            rows += _rows(name, BARS[database], [(open_, noop) for open_, _, noop in turns])
            rows.append(report.Row("no-op beside it", [noop["per_second"] for *_, noop in turns], "/s"))
            rows += _rows(f"{name}, with a key", BARS[database], [(guarded, noop) for _, guarded, noop in turns])
            costs = [guarded["cpu_us"] / open_["cpu_us"] for open_, guarded, _ in turns]
            rows.append(report.Row(f"{name}, with a key: the server's CPU time, relative to no key", costs, "×"))
    finally:
        processes.stop_all()
        redis.close()
    return rows


def _guarded(processes: Processes, home: Path, url: str, redis: str) -> tuple[Process, int, str]:
    """Starts a server with keys and rate limits, and returns it with such a key."""
    admin = secrets.token_hex(16)
    server, port = serve(
        processes, home, url, FOOTPLATE_REDIS=redis, FOOTPLATE_API_KEY=admin, FOOTPLATE_RATE_PER_KEY=1e6
    )
    answer = httpx2.post(
        f"http://127.0.0.1:{port}/keys",
        json={"name": "bench", "project": "default"},
        headers={"Authorization": f"Bearer {admin}"},
    )
    return server, port, str(answer.json()["key"])


def _rows(name: str, goal: float, pairs: list[tuple[dict[str, float], dict[str, float]]]) -> list[report.Row]:
    rates = [figures["per_second"] / noop["per_second"] for figures, noop in pairs]
    times = [noop["cpu_us"] / figures["cpu_us"] for figures, noop in pairs]
    return [
        report.Row(f"{name}: ratio to no-op", rates, "×", f"≥ {goal}"),
        report.Row(f"{name}: ratio by the server's CPU time", times, "×"),
        report.Row(name, [figures["per_second"] for figures, _ in pairs], "/s"),
        report.Row(f"{name}: p99", [figures["p99_ms"] for figures, _ in pairs], "ms", "≤ 100"),
    ]


def _measured(
    processes: Processes, server: Process, port: int, key: str, seconds: float, client: str
) -> dict[str, float]:
    cpu_before = cpu_seconds(server.pid)
    figures = load(processes, port, seconds, client, key)
    return {**figures, "cpu_us": 1e6 * (cpu_seconds(server.pid) - cpu_before) / figures["count"]}


def load(processes: Processes, port: int, seconds: float, client: str = "raw", key: str = "") -> dict[str, float]:
    arguments = [client, str(port), SPEC, str(CONNECTIONS), str(seconds), *([key] if key else [])]
    loader = processes.start("-m", "bench.load", *arguments, name="load")
    assert loader.wait(seconds + 30) == 0, loader.output
    return dict(json.loads(loader.output))


def serve(
    processes: Processes, home: Path, url: str, role: str = "api", **settings: str | Path | int | float
) -> tuple[Process, int]:
    """Starts our service on a free port, and returns it with the port."""
    home.mkdir(exist_ok=True, parents=True)
    url_file = home / "url"
    env: Environment = {
        "FOOTPLATE_HOME": home,
        "FOOTPLATE_DATABASE": url,
        "FOOTPLATE_PORT": 0,
        "FOOTPLATE_URL_FILE": url_file,
        **settings,
    }
    assert processes.start("-m", "service", "migrate", env=env).wait(60) == 0
    server = processes.start("-m", "service", role, env=env)
    server.until(url_file.exists, within=30, what="the service listens")
    return server, int(url_file.read_text().rpartition(":")[2])


def _noop(processes: Processes) -> tuple[Process, int]:
    port = free_port()
    server = processes.start("-m", "bench.noop", str(port))
    until(lambda: load(processes, port, 0.1), within=30, what="the no-op listens", despite=(AssertionError, OSError))
    return server, port


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / 100


@contextmanager
def database_url(database: str, folder: Path) -> Iterator[str]:
    if database == "sqlite":
        yield f"sqlite:///{folder / 'bench.db'}"
    elif (postgres := programs()) is None:
        yield ""
    else:
        server = PostgresServer(postgres).start()
        try:
            with server.database() as url:
                yield url
        finally:
            server.close()
