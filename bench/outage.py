"""Measures whether training becomes slower while Redis does not answer, or while 200 readers watch the job.

The steps of one run are measured in windows that alternate: with Redis and with Redis frozen or killed, without readers
and with 200. Service and readers share two cores and their caches with training here. So a step takes more CPU time
beside any neighbour, and less when ingest has nothing to do. A callback inside the process measures the loop's own
part: the CPU time for sending events, and how long sending delayed the loop.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median

import httpx2

from bench import clock, report
from bench.post import serve
from bench.system import JSON
from footplate.contract.layout import attempt_folder
from tests.support.processes import REPOSITORY, Process, Processes, until
from tests.support.redis_server import RedisServer

READERS = 200
SETTLE_SECONDS = 1.0
"""The time between a change and the window that measures its effect."""


def run(folder: Path, *, quick: bool = False) -> list[report.Row]:
    pairs, seconds = (3, 3.0) if quick else (8, 5.0)
    bench = _Bench(folder)
    try:
        with bench.training(logging_steps=1) as training:
            frozen = bench.pairs(training, pairs, seconds, bench.redis.freeze, bench.redis.thaw)
            killed = bench.pairs(training, pairs, seconds, bench.redis.kill, bench.redis.start)
        with bench.training(logging_steps=100) as training:
            readers = bench.pairs(
                training, pairs, seconds, lambda: bench.read(training.job), bench.let_readers_go, settle=0.0
            )
    finally:
        bench.close()
    return [
        *_rows("Redis frozen", frozen),
        *_rows("Redis killed", killed),
        *_rows(f"{READERS} readers", readers),
    ]


@dataclass(frozen=True)
class Window:
    """The time of one step of training, in microseconds."""

    wall: float
    cpu: float
    sending: float
    """The CPU time for sending events, which is the loop's own cost of being watched."""
    delay: float
    """The wall time for sending events beyond `sending`, because the core was busy or the kernel woke the reader."""

    @classmethod
    def of(cls, rows: Sequence[tuple[int, int, int, int]]) -> Window:
        """Returns median step times, because a step that lost its core distorts a mean. Sending times are means."""
        assert len(rows) > 100, f"only {len(rows)} steps in a window"
        walls = [(b[0] - a[0]) / 1e3 for a, b in pairwise(rows)]
        cpus = [(b[1] - a[1]) / 1e3 for a, b in pairwise(rows)]
        wall_in_send, cpu_in_send = rows[-1][2] - rows[0][2], rows[-1][3] - rows[0][3]
        steps = len(rows) - 1
        in_send = (cpu_in_send, wall_in_send - cpu_in_send)
        return cls(median(walls), median(cpus), *(spent / 1e3 / steps for spent in in_send))


Pair = tuple[Window, Window]


def _rows(what: str, pairs: Sequence[Pair]) -> list[report.Row]:
    return [
        report.Row(f"{what}: CPU time of a step, relative to normal", [b.cpu / a.cpu for a, b in pairs], "×", "≤ 1.02"),
        report.Row(f"{what}: wall time of a step, relative to normal", [b.wall / a.wall for a, b in pairs], "×"),
        report.Row(f"{what}: CPU time of a step for sending events", [b.sending for _, b in pairs], "µs"),
        report.Row("… normal", [a.sending for a, _ in pairs], "µs"),
        report.Row(f"{what}: further delay of a step by sending them", [b.delay for _, b in pairs], "µs"),
        report.Row("… normal", [a.delay for a, _ in pairs], "µs"),
        report.Row("normal CPU time of a whole step", [a.cpu for a, _ in pairs], "µs"),
    ]


@dataclass(frozen=True)
class Training:
    job: str
    rows: Path

    def between(self, start: int, end: int) -> list[tuple[int, int, int, int]]:
        return [row for row in clock.read(self.rows) if start <= row[0] <= end]


class _Bench:
    """A service, a node and a Redis that can be frozen or killed."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.processes, self.redis = folder, Processes(folder), RedisServer().start()
        clock.install(folder / "plugins")
        env = {
            "FOOTPLATE_REDIS": self.redis.url, "FOOTPLATE_HOME": folder, "FOOTPLATE_LEASE_SECONDS": 600,
            "FOOTPLATE_NODE_HOME": folder / "node", "FOOTPLATE_SLOTS": 1,
            "PYTHONPATH": f"{folder / 'plugins'}:{REPOSITORY}",
        }  # fmt: skip
        _, port = serve(self.processes, folder, f"sqlite:///{folder / 'outage.db'}", role="all", **env)
        self.url = f"http://127.0.0.1:{port}"
        self.client = httpx2.Client(base_url=self.url, timeout=30)
        self.readers: Process | None = None
        node = self.processes.start("-m", "worker", env=env)
        node.until(self._has_node, within=90, what="the node takes work")

    def _has_node(self) -> bool:
        return any(node["state"] == "up" for node in self.client.get("/nodes").json()["data"])

    @contextmanager
    def training(self, logging_steps: int) -> Iterator[Training]:
        """Starts a training that runs until the measurement ends."""
        spec: JSON = {
            "model": {"use": "toy/mlp", "args": {"hidden": 256, "depth": 3}},
            "data": {"use": "toy/regression", "args": {"n": 4096}},
            "training": {
                "max_steps": 10_000_000, "per_device_train_batch_size": 64, "logging_steps": logging_steps,
                "save_strategy": "no",
            },
            "callbacks": ["bench/clock"],
        }  # fmt: skip
        answer = self.client.post("/jobs", json=spec)
        assert answer.status_code == 201, answer.text
        job = answer.json()["id"]
        training = Training(job, self.folder / "artifacts" / attempt_folder(job, 1) / clock.FILE)
        until(lambda: self._has_begun(training), within=90, what="the job trains, and its clock writes")
        yield training
        self.client.post(f"/jobs/{training.job}/cancel", json={"mode": "kill"})
        until(lambda: self._job(training.job)["state"] == "cancelled", within=60, what="the job is cancelled")

    def _has_begun(self, training: Training) -> bool:
        job = self._job(training.job)
        assert job["state"] in ("queued", "starting", "running"), job
        return training.rows.exists() and training.rows.stat().st_size > 100_000

    def pairs(
        self, training: Training, count: int, seconds: float, change: Callable[[], object], back: Callable[[], object],
        settle: float = SETTLE_SECONDS,
    ) -> list[Pair]:  # fmt: skip
        """Measures windows without and with the change. The order of the two is reversed each time."""
        pairs = []
        for number in range(count):
            without = self._window(training, seconds) if number % 2 == 0 else None
            change()
            time.sleep(settle)
            changed = self._window(training, seconds)
            back()
            time.sleep(max(settle, SETTLE_SECONDS))
            pairs.append((without or self._window(training, seconds), changed))
        return pairs

    def _window(self, training: Training, seconds: float) -> Window:
        start = time.time_ns()
        time.sleep(seconds)
        end = time.time_ns()
        # The clock writes some hundreds of rows at a time.
        until(lambda: clock.read(training.rows)[-1][0] > end, within=30, what="the clock's rows are written")
        return Window.of(training.between(start, end))

    def read(self, job: str) -> None:
        address = f"{self.url.replace('http', 'ws')}/jobs/{job}/stream?after={self._job(job)['last_no']}"
        readers = self.readers = self.processes.start("-m", "bench.readers", address, str(READERS), name="reader")
        readers.until(lambda: "ready" in readers.output, within=60, what="readers are caught up")

    def let_readers_go(self) -> None:
        assert self.readers is not None
        assert self.readers.is_running, self.readers.output
        self.readers.kill()

    def _job(self, job: str) -> JSON:
        return dict(self.client.get(f"/jobs/{job}").json())

    def close(self) -> None:
        self.client.close()
        self.redis.thaw()
        self.processes.stop_all()
        self.redis.close()
