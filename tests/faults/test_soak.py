"""Mixed load under random kills, and the books at the end: lost, run twice, stuck, torn, different. All must be zero.

`make test` runs a sample on each database; `make soak` runs FOOTPLATE_SOAK_SECONDS (an hour). Prints its seed.
"""

from __future__ import annotations

import os
import random
import signal
import time
from contextlib import suppress

import httpx2
import pytest

from tests.support.processes import Processes, children, until
from tests.support.redis_server import RedisServer
from tests.support.system import JSON, LONG_TOY, SETTLED, System, assert_whole

SAMPLE_SECONDS = 20.0
STUCK_SECONDS = 60.0
AT_ONCE = 6
"""Jobs under way at any time, on two nodes of two slots: some always wait."""


def a_spec(number: int) -> JSON:
    """Four kinds of job, by seed: each ends in the same weights however often it was killed."""
    training = {**LONG_TOY["training"], "max_steps": 40 + 20 * (number % 2), "seed": number % 4, "save_steps": 5}
    # Nobody gives up here: what is asked is whether it ends right.
    return {**LONG_TOY, "training": training, "retry": {"max_attempts": 100}}


class Chaos:
    """One random kill after another, each of the real thing; what has no keeper of its own is started again."""

    def __init__(self, system: System, seed: int) -> None:
        self.system, self.random = system, random.Random(seed)
        self.done: list[str] = []

    def strike(self) -> None:
        strikes = [
            self.training,
            self.training,
            self.supervisor,
            self.warm_parent,
            self.worker,
            self.redis,
            self.service,
        ]
        strike = self.random.choice(strikes)
        self.done.append(strike.__name__)
        strike()

    def training(self) -> None:
        """Or a data worker of one."""
        self._kill(pid for job in self._running() for pid in self.system.training_pids(job))

    def supervisor(self) -> None:
        self._kill(pid for pid in self._family() if b"worker.warm" not in _command(pid))

    def warm_parent(self) -> None:
        self._kill(pid for pid in self._family() if b"worker.warm" in _command(pid))

    def worker(self) -> None:
        number = self.random.choice(list(self.system.nodes))
        self.system.nodes[number].kill()
        self.system.start_node(number, slots=2, wait=False)

    def redis(self) -> None:
        self.system.redis.restart_empty()

    def service(self) -> None:
        self.system.services["all"].kill()
        self.system.start_service()

    def _family(self) -> list[int]:
        return children(self.random.choice(list(self.system.nodes.values())).pid)

    def _running(self) -> list[str]:
        return [job["id"] for job in self.system.get("/jobs", state="running", limit=100)["data"]]

    def _kill(self, pids: object) -> None:
        if found := sorted(pids):  # type: ignore[call-overload]
            with suppress(ProcessLookupError):
                os.kill(self.random.choice(found), signal.SIGKILL)


def _command(pid: int) -> bytes:
    with suppress(OSError), open(f"/proc/{pid}/cmdline", "rb") as file:
        return file.read()
    return b""


def run_for(seconds: float, system: System, seed: int) -> None:
    system.start_service()
    for number in (1, 2):
        system.start_node(number, slots=2)
    quiet = [system.submit(a_spec(number)) for number in range(4)]
    expected = {number: _result(system, job) for number, job in enumerate(quiet)}
    chaos, submitted = Chaos(system, seed), list[str]()
    deadline, strike_at = time.monotonic() + seconds, time.monotonic() + 2
    while time.monotonic() < deadline:
        with suppress(httpx2.TransportError):
            under_way = [job for job in submitted if system.state(job) not in SETTLED]
            if len(under_way) < AT_ONCE:
                submitted.append(system.submit(a_spec(len(submitted))))
        if time.monotonic() >= strike_at:
            chaos.strike()
            strike_at = time.monotonic() + chaos.random.uniform(0.5, 4.0)

    system.until(lambda: all(system.state(job) in SETTLED for job in submitted), within=STUCK_SECONDS * 3,
                 what=f"every job has ended (strikes: {chaos.done})", job=submitted[-1])  # fmt: skip
    for number, job in enumerate(submitted):
        _audit(system, job, expected[number % 4])
    print(f"{len(submitted)} jobs, {len(chaos.done)} strikes: {chaos.done}")


def _result(system: System, job: str) -> tuple[bytes, dict[int, float]]:
    system.until_settled(job, within=120)
    return system.final_weights(job), system.losses(job)


def _audit(system: System, job: str, expected: tuple[bytes, dict[int, float]]) -> None:
    for _ in range(20):
        ended = system.until_settled(job, within=120)
        if ended["reason"] != "poison":
            break
        # Killed three times before its first checkpoint: an honest end, and a person would say this.
        system.do(job, "resume")
    assert ended["state"] == "succeeded", ended
    events = system.events(job)
    assert_whole(events)
    started = [event["attempt"] for event in events if event["kind"] == "state" and event["data"]["state"] == "running"]
    assert len(started) == len(set(started)), f"{job}: an attempt ran twice: {started}"
    assert system.losses(job) == expected[1], job
    assert system.final_weights(job) == expected[0], job
    until(lambda: system.training_pids(job) == [], within=5, what="no process of it is left")


@pytest.mark.timeout(600)
def test_a_sample_of_random_kills_leaves_the_books_in_order(
    processes: Processes, redis: RedisServer, database_url: str
) -> None:
    seed = random.SystemRandom().randrange(1 << 32)
    print(f"seed {seed}")
    run_for(SAMPLE_SECONDS, System(processes, redis, database_url), seed)


@pytest.mark.soak
@pytest.mark.timeout(2 * 3600)
def test_an_hour_of_random_kills_leaves_the_books_in_order(
    processes: Processes, redis: RedisServer, database_url: str
) -> None:
    seed = random.SystemRandom().randrange(1 << 32)
    print(f"seed {seed}")
    run_for(float(os.environ.get("FOOTPLATE_SOAK_SECONDS", "3600")), System(processes, redis, database_url), seed)
