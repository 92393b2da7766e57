"""Tests wall clocks that jump by an hour. No attempt counts as lost, and events stay in order."""

from __future__ import annotations

import pytest

from tests.support import preload
from tests.support.processes import Processes
from tests.support.redis_server import RedisServer
from tests.support.system import LONG_TOY, System, assert_whole

HOUR = 3600.0
JUMPS = [("service", HOUR), ("worker", HOUR), ("service", -HOUR), ("worker", -HOUR)] * 4


@pytest.fixture
def system(processes: Processes, redis: RedisServer, sqlite_url: str, protection_off: list[str]) -> System:
    """Starts a system on SQLite, because no database reads a clock.

    Heartbeats are rare, so that control checks the leases between a jump and the next heartbeat.
    """
    result = System(processes, redis, sqlite_url, FOOTPLATE_BEAT_SECONDS="2", FOOTPLATE_LEASE_SECONDS="8")
    result.environment["PYTHONPATH"] = preload.write(result.preload, without=protection_off, jumpy=True)
    return result.start()


@pytest.mark.fault(18, without="leases are timed by a clock that does not jump", red="lost .* without need")
def test_a_clock_jump_of_an_hour_loses_no_attempt_and_keeps_events_in_order(system: System) -> None:
    slow = {"use": "toy/regression", "args": {"n": 256, "seconds_per_item": 0.01}}
    job = system.submit(LONG_TOY, data=slow)
    step = 2
    for who, seconds in JUMPS:
        system.until_step(job, step)
        preload.jump(system.preload, who, seconds)
        assert system.job(job)["attempt"] <= 1, f"lost {who} without need"
        step += 7
    outcome = system.until_settled(job)

    lost_count = system.counted("footplate_control_attempts_lost_total")
    assert lost_count == 0, f"lost {lost_count} attempts without need"
    assert (outcome["state"], outcome["attempt"]) == ("succeeded", 1), outcome
    events = system.events(job)
    assert_whole(events)
    hours = {event["at"][:13] for event in events}
    assert len(hours) >= 3, f"the clocks did not jump: {hours}"
    assert_ordered_by_cause(system, job)


def assert_ordered_by_cause(system: System, job: str) -> None:
    """Checks that steps rise with `no`, whatever their timestamps are."""
    steps = [row["step"] for row in system.metrics(job)]
    assert steps == sorted(steps)
