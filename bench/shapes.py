"""Measures how soon jobs of several shapes train, and how soon a job trains again after its node was lost.

The shapes are one process, a bundle, two processes and two nodes. The time is from POST to the end of the first
optimizer step, in turns with a plain job. Both nodes share the cores of one machine.
"""

from __future__ import annotations

import io
import time
import zipfile
from datetime import datetime
from pathlib import Path

from bench import report
from bench.system import JSON, System, submit, system, until_state
from tests.support.processes import until

PLAIN = "one process"
LEASE_SECONDS, BEAT_SECONDS = 10.0, 1.0
CODE = "from footplate.components import toy\n\n\ndef net():\n    return toy.mlp()\n"


def run(folder: Path, *, quick: bool = False) -> list[report.Row]:
    turns, losses = (3, 1) if quick else (15, 3)
    lease = {"FOOTPLATE_LEASE_SECONDS": LEASE_SECONDS, "FOOTPLATE_BEAT_SECONDS": BEAT_SECONDS}
    with system(folder / "shapes", slots=2, nodes=2, FOOTPLATE_CODE="on", **lease) as running_system:
        shapes = {
            PLAIN: {},
            "code in a bundle": {"model": "own_net:net", "code": {"bundle": _bundle(running_system)}},
            "two processes": {"resources": {"processes_per_node": 2}},
            "two nodes": {"resources": {"nodes": 2}},
        }
        for spec in shapes.values():
            _first_step(running_system, spec)
        milliseconds: dict[str, list[float]] = {name: [] for name in shapes}
        for _ in range(turns):
            for name, spec in shapes.items():
                milliseconds[name].append(_first_step(running_system, spec))
        seconds = [_after_a_loss(running_system) for _ in range(losses)]
    rows = [report.Row("warm POST → first step, one process", milliseconds[PLAIN], "ms", "≤ 150")]
    for name in [shape for shape in shapes if shape != PLAIN]:
        rows.append(report.Row(f"warm POST → first step, {name}", milliseconds[name], "ms"))
        ratios = [time_ms / plain_ms for time_ms, plain_ms in zip(milliseconds[name], milliseconds[PLAIN], strict=True)]
        rows.append(report.Row(f"the same, relative to one process: {name}", ratios, "×"))
    what = f"a node killed → its job trains on another, beyond the lease of {LEASE_SECONDS:g} s"
    return [*rows, report.Row(what, seconds, "s")]


def _bundle(running_system: System) -> str:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("own_net.py", CODE)
    answer = running_system.client.post(
        "/bundles", content=buffer.getvalue(), headers={"Content-Type": "application/zip"}
    )
    return str(answer.raise_for_status().json()["sha256"])


def _first_step(running_system: System, spec: JSON) -> float:
    """Returns the milliseconds to the first step. The worker's clock is ours, because both are on one machine."""
    posted_at = time.time()
    job = submit(running_system.client, spec, max_steps=1, logging_steps=1)
    until_state(running_system.client, job)
    return 1000 * (_at(running_system, job, attempt=1) - posted_at)


def _after_a_loss(running_system: System) -> float:
    """Returns the seconds from the kill to the first step of the next attempt, without the lease."""
    slow: JSON = {"data": {"use": "toy/regression", "args": {"n": 4096, "seconds_per_item": 0.002}}}
    job = submit(
        running_system.client, slow, max_steps=400, logging_steps=1, save_steps=20, per_device_train_batch_size=8
    )
    until(
        lambda: running_system.client.get(f"/jobs/{job}/checkpoints").json()["data"],
        within=60,
        what="the job has a checkpoint",
    )
    node = running_system.client.get(f"/jobs/{job}").json()["nodes"][0]
    running_system.nodes[node].kill()
    killed_at = time.time()
    until(lambda: _logged(running_system, job, attempt=2), within=120, what="the second attempt trains", every=0.2)
    seconds = _at(running_system, job, attempt=2) - killed_at - LEASE_SECONDS
    running_system.client.post(f"/jobs/{job}/cancel").raise_for_status()
    running_system.start_node(node)
    return seconds


def _logged(running_system: System, job: str, *, attempt: int) -> list[JSON]:
    events = running_system.client.get(f"/jobs/{job}/events?kinds=log&limit=1000").json()["data"]
    return [event for event in events if event["attempt"] == attempt]


def _at(running_system: System, job: str, *, attempt: int) -> float:
    return min(
        datetime.fromisoformat(event["at"]).timestamp() for event in _logged(running_system, job, attempt=attempt)
    )
