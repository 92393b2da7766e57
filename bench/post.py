"""POST /jobs, validated and stored with its first event, against a FastAPI no-op: 16 connections, one process each."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench import report
from tests.support.postgres import PostgresServer, programs
from tests.support.processes import Process, Processes, free_port, until

SPEC = json.dumps({"model": "toy/mlp", "data": "toy/regression"})
CONNECTIONS = 16
BARS = {"sqlite": 0.5, "postgres": 0.35}


def run(folder: Path, *, quick: bool = False) -> list[report.Row]:
    rounds, seconds = (2, 1.5) if quick else (5, 4.0)
    rows = []
    for database in ("sqlite", "postgres"):
        with _url(database, folder) as url:
            if url:
                rows += _compare(folder, database, url, rounds, seconds)
    return rows


def _compare(folder: Path, database: str, url: str, rounds: int, seconds: float) -> list[report.Row]:
    folder /= database
    folder.mkdir()
    processes = Processes(folder)
    try:
        noop, noop_port = _noop(processes)
        ours, ours_port = serve(processes, folder / "home", url)
        for port in (noop_port, ours_port):
            load(processes, port, 1.0)
        pairs = [
            (_measured(processes, ours, ours_port, seconds), _measured(processes, noop, noop_port, seconds))
            for _ in range(rounds)
        ]
    finally:
        processes.stop_all()
    assert not any(mine["errors"] for mine, _ in pairs), pairs
    ratios = [mine["per_second"] / other["per_second"] for mine, other in pairs]
    by_cpu = [other["cpu_us"] / mine["cpu_us"] for mine, other in pairs]
    return [
        report.Row(f"POST /jobs, {database}: ratio to no-op", ratios, "×", f"≥ {BARS[database]}"),
        report.Row(f"POST /jobs, {database}", [mine["per_second"] for mine, _ in pairs], "/s", ""),
        report.Row("no-op beside it", [other["per_second"] for _, other in pairs], "/s"),
        report.Row("the same ratio by CPU time of the server", by_cpu, "×", f"≥ {BARS[database]}"),
        report.Row("CPU time of one POST", [mine["cpu_us"] for mine, _ in pairs], "µs"),
        report.Row(f"POST /jobs, {database}: p99", [mine["p99_ms"] for mine, _ in pairs], "ms", "≤ 100"),
    ]


def _measured(processes: Processes, server: Process, port: int, seconds: float) -> dict[str, float]:
    before = cpu_seconds(server.pid)
    found = load(processes, port, seconds)
    return {**found, "cpu_us": 1e6 * (cpu_seconds(server.pid) - before) / found["count"]}


def load(
    processes: Processes, port: int, seconds: float, method: str = "POST", path: str = "/jobs"
) -> dict[str, float]:
    body = SPEC if method == "POST" else ""
    one = processes.start(
        "-m", "bench.load", str(port), method, path, body, str(CONNECTIONS), str(seconds), name="load"
    )
    assert one.wait(seconds + 30) == 0, one.output
    return dict(json.loads(one.output))


def serve(processes: Processes, home: Path, url: str, role: str = "api", **more: str) -> tuple[Process, int]:
    """Ours, on a free port."""
    home.mkdir(exist_ok=True, parents=True)
    url_file = home / "url"
    env = {
        "FOOTPLATE_HOME": home,
        "FOOTPLATE_DATABASE": url,
        "FOOTPLATE_PORT": 0,
        "FOOTPLATE_URL_FILE": url_file,
        **more,
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
def _url(database: str, folder: Path) -> Iterator[str]:
    if database == "sqlite":
        yield f"sqlite:///{folder / 'bench.db'}"
    elif (found := programs()) is None:
        yield ""
    else:
        server = PostgresServer(found).start()
        try:
            with server.database() as url:
                yield url
        finally:
            server.close()


if __name__ == "__main__":
    report.main(run, quick="--quick" in sys.argv)
