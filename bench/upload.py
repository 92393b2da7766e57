"""Measures whether training becomes slower while its checkpoints are uploaded to a bucket.

Training saves all the time, in the background. The steps of one run are measured in windows that alternate. In one all
checkpoints are uploaded. In the other the bucket is unreachable. moto's S3 is Python and shares two cores with training
here, so the wall time includes its work.
"""

from __future__ import annotations

import time
from pathlib import Path

from bench import clock, report
from bench.outage import Pair, Training, Window
from bench.system import JSON, System, submit, system
from tests.support.processes import REPOSITORY, until
from tests.support.s3_server import S3Server, s3_server

SPEC: JSON = {
    "model": {"use": "toy/mlp", "args": {"hidden": 512, "depth": 3}},
    "data": {"use": "toy/regression", "args": {"n": 4096}},
    "callbacks": ["bench/clock"],
}


def run(folder: Path, *, quick: bool = False) -> list[report.Row]:
    pairs, seconds = (2, 4.0) if quick else (6, 8.0)
    clock.install(folder / "plugins")
    with s3_server(folder) as s3:
        settings = {**s3.environment("bench"), "PYTHONPATH": f"{folder / 'plugins'}:{REPOSITORY}"}
        with system(folder / "home", FOOTPLATE_LEASE_SECONDS=600, **settings) as running_system:
            job = submit(
                running_system.client, SPEC, max_steps=10_000_000, per_device_train_batch_size=64, logging_steps=1000,
                save_strategy="steps", save_steps=500, save_total_limit=2, save_in_background=True,
            )  # fmt: skip
            windows = _measured(running_system, s3, job, pairs, seconds)
            checkpoints = [row for row in _checkpoints(running_system, job) if row["status"] == "committed"]
    return [
        report.Row(
            "uploads meanwhile: CPU time of a step, relative to no uploads",
            [b.cpu / a.cpu for a, b in windows],
            "×",
            "≤ 1.02",
        ),
        report.Row(
            "uploads meanwhile: wall time of a step, relative to no uploads", [b.wall / a.wall for a, b in windows], "×"
        ),
        report.Row("wall time of a step without uploads", [a.wall for a, _ in windows], "µs"),
        report.Row("a checkpoint", [row["bytes"] / 1e6 for row in checkpoints], "MB"),
    ]


def _measured(running_system: System, s3: S3Server, job: str, pairs: int, seconds: float) -> list[Pair]:
    until(lambda: _checkpoints(running_system, job), within=120, what="the job's first checkpoint is uploaded")
    windows = []
    for _ in range(pairs):
        _until_sent(running_system, job)
        baseline = _window(running_system, job, seconds)
        with s3.away():
            windows.append((_window(running_system, job, seconds), baseline))
    return windows


def _until_sent(running_system: System, job: str) -> None:
    """Waits until all delayed checkpoints are uploaded, and one more."""
    newest = _checkpoints(running_system, job)[0]["step"]
    until(lambda: _checkpoints(running_system, job)[0]["step"] > newest, within=120, what="checkpoints are uploaded")


def _window(running_system: System, job: str, seconds: float) -> Window:
    home = Path(str(running_system.environment["FOOTPLATE_HOME"]))
    [rows] = home.glob(f"node-1/work/*/jobs/{job}/attempts/1/{clock.FILE}")
    start = time.time_ns()
    time.sleep(seconds)
    end = time.time_ns()
    # The clock writes some hundreds of rows at a time.
    until(lambda: clock.read(rows)[-1][0] > end, within=30, what="the clock's rows are written")
    return Window.of(Training(job, rows).between(start, end))


def _checkpoints(running_system: System, job: str) -> list[JSON]:
    return list(running_system.client.get(f"/jobs/{job}/checkpoints").json()["data"])
