from __future__ import annotations

import os
import time

import pytest

from worker.attempt.usage import Usage


def test_measured_cpu_use_never_exceeds_the_machines_cpus() -> None:
    while time.process_time() < 0.2:
        pass

    assert Usage(os.getpid(), []).measure()["cpu_percent"] <= 100 * (os.cpu_count() or 1)


def test_cpu_use_is_counted_per_process_even_if_a_pid_is_reused(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, cpu_seconds = [0.0], {(7, "1"): 3.0, (8, "1"): 900.0}
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(os, "cpu_count", lambda: 4)
    monkeypatch.setattr(Usage, "_processes", lambda _: (dict(cpu_seconds), 64.0))
    watched = Usage(7, [])

    # A data worker has ended, and a new one has the same pid.
    del cpu_seconds[8, "1"]
    cpu_seconds |= {(7, "1"): 4.0, (8, "2"): 0.5}
    clock[0] = 2.0

    assert watched.measure() == {"cpu_percent": 75.0, "memory_mb": 64.0, "processes": 2}
