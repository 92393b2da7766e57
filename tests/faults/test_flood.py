"""Tests training that sends and prints as much as possible. It is limited, and events of other jobs arrive in time."""

from __future__ import annotations

import threading
import time
from datetime import datetime

import pytest

from tests.faults import training_faults
from tests.faults.training_faults import FLOOD
from tests.support.processes import Processes, Standstill, at_ease
from tests.support.redis_server import RedisServer
from tests.support.system import JSON, LONG_TOY, System, assert_whole

LAG_SECONDS = 2.0
ENDLESS: JSON = {**LONG_TOY, "training": {"max_steps": 1_000_000, "logging_steps": 1, "save_strategy": "no"}}


@pytest.fixture
def system(processes: Processes, redis: RedisServer, sqlite_url: str, protection_off: list[str]) -> System:
    return System(processes, redis, sqlite_url, without=protection_off)


@pytest.mark.fault(15, without="the number of lines is limited", red="every line is stored")
def test_a_flood_of_events_and_lines_is_cut_with_marks_and_delays_no_job(system: System) -> None:
    markers = system.processes.folder / "markers"
    system.start(slots=2)
    quiet = system.submit(ENDLESS)
    system.until_step(quiet, 2)
    with Standstill() as still:
        watching = Watching(system, quiet)
        loud = system.submit(training_faults.toy("flood", markers / "loud", steps=[5]))

        assert system.until_settled(loud, within=60)["state"] == "succeeded"
        assert system.state(quiet) == "running"
        system.do(quiet, "cancel", {"mode": "kill"})
        watching.thread.join(at_ease(60))

    events = system.events(loud)
    assert_whole(events)
    lines = [event["data"] for event in events if event["kind"] == "line"]
    left_out = sum(line.get("left_out", 0) for line in lines)
    assert left_out > 0, f"every line is stored: {len(lines)}"
    assert left_out + sum("x" * 100 in line["text"] for line in lines) == FLOOD, "a line is neither stored nor counted"
    logs = [event["data"] for event in events if event["kind"] == "log"]
    merged = sum(event["data"].get("merged", 0) for event in events if event["kind"] == "note")
    assert merged + sum("n" in log for log in logs) >= FLOOD, "an event is neither stored nor counted"
    assert any(log["bytes"] > 10_000_000 for log in logs if log.get("truncated")), "a huge event is not truncated"
    lag = watching.lag - still.seconds
    assert lag < at_ease(LAG_SECONDS), f"events of the other job arrived {lag:.1f} s late"


class Watching:
    """Reads a job's events from a websocket, and records the longest delay of an event."""

    def __init__(self, system: System, job: str) -> None:
        self.lag = 0.0
        self.thread = threading.Thread(target=self._watch, args=(system, job), daemon=True)
        self.thread.start()

    def _watch(self, system: System, job: str) -> None:
        for frame in system.watch(f"/jobs/{job}/stream"):
            events: list[JSON] = frame.get("events", [])
            for event in events:
                if event["source"] >= 0:
                    self.lag = max(self.lag, time.time() - datetime.fromisoformat(event["at"]).timestamp())
