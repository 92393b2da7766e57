"""Measures how many queued trivial jobs one node finishes in a second."""

from __future__ import annotations

import time
from pathlib import Path

from bench import report
from bench.system import submit, system, until_state


def run(folder: Path, *, quick: bool = False) -> list[report.Row]:
    count = 30 if quick else 300
    with system(folder / "drain", slots=2) as running_system:
        client = running_system.client
        until_state(client, submit(client, max_steps=1))
        start = time.perf_counter()
        for _ in range(count):
            submit(client, max_steps=1)
        deadline = time.monotonic() + 300
        while client.get("/jobs?state=queued,starting,running,stopping&limit=1").json()["data"]:
            assert time.monotonic() < deadline, "the queue does not drain"
            time.sleep(0.1)
        seconds = time.perf_counter() - start
        success_count = client.get("/jobs?state=succeeded&limit=1").json()["total_estimate"]
        assert success_count == count + 1, f"{count + 1 - success_count} jobs did not succeed"
    return [report.Row(f"{count} queued jobs drained by one node of two slots", [count / seconds], "jobs/s", "≥ 5")]
