"""Measures the time from POST to the end of the first optimizer step, on a warm node."""

from __future__ import annotations

import time
from datetime import datetime
from pathlib import Path

import httpx2

from bench import report
from bench.system import submit, system, until_state


def run(folder: Path, *, quick: bool = False) -> list[report.Row]:
    count = 10 if quick else 60
    with system(folder / "latency") as running_system:
        client = running_system.client
        for _ in range(3):
            until_state(client, submit(client, max_steps=1, logging_steps=1))
        samples = sorted(_sample(client) for _ in range(count))
    p99 = samples[min(len(samples) - 1, int(len(samples) * 0.99))]
    return [
        report.Row(f"warm POST → first step, p50 of {count}", [samples[len(samples) // 2]], "ms", "≤ 150"),
        report.Row(
            f"warm POST → first step, p99 of {count} (range: all)", [p99, samples[0], samples[-1]], "ms", "≤ 500"
        ),
    ]


def _sample(client: httpx2.Client) -> float:
    """Measures one job. The worker runs on this machine, so its clock can be compared with ours."""
    posted_at = time.time()
    job = submit(client, max_steps=1, logging_steps=1)
    until_state(client, job)
    events = client.get(f"/jobs/{job}/events?kinds=log").json()["data"]
    first_log = next(event for event in events if event["step"] == 1)
    return 1000 * (datetime.fromisoformat(first_log["at"]).timestamp() - posted_at)
