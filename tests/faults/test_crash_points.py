"""Tests a kill at every moment before and after every durable step: one job, one run of each attempt, one result.

Killed processes are started again, as by systemd and Celery. A client without an answer repeats its request with its
Idempotency-Key. Every job must end with the weights and losses of an undisturbed job.
"""

from __future__ import annotations

import os
import re
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path

import httpx2
import pytest

from footplate.contract.crash_points import Moment
from tests.support import preload
from tests.support.postgres import PostgresServer
from tests.support.processes import Processes, children
from tests.support.redis_server import RedisServer
from tests.support.system import JSON, LONG_TOY, System, assert_whole

LATER = {
    Moment.AFTER_JOURNAL_WRITE: 14,
    Moment.AFTER_JOURNAL_SYNC: 3,
    Moment.BEFORE_SEND: 6,
    Moment.AFTER_SEND: 6,
    Moment.AFTER_CHECKPOINT_WRITTEN: 2,
    Moment.AFTER_CHECKPOINT_SEALED: 2,
    Moment.AFTER_CHECKPOINT_RENAMED: 2,
    Moment.AFTER_CHECKPOINT_COMMITTED: 2,
    Moment.AFTER_CHECKPOINT_REPORTED: 2,
}
"""Moments that a process must reach this many times before it dies there.

Each process counts for itself, so only a process that lives long reaches a high count.
"""
VERBS = (Moment.BEFORE_VERB_COMMITS, Moment.AFTER_VERB_COMMITS)
RESCUES = (Moment.BEFORE_RESCUE_COMMITS, Moment.AFTER_RESCUE_COMMITS)
SERVICE = {
    "dispatched": [
        Moment.BEFORE_SUBMIT_COMMITS, Moment.AFTER_SUBMIT_COMMITS, Moment.BEFORE_PLACE_COMMITS,
        Moment.AFTER_PLACE_COMMITS, Moment.AFTER_DISPATCH,
    ],
    "granted": [
        Moment.BEFORE_GRANT_COMMITS, Moment.AFTER_GRANT_COMMITS, Moment.AFTER_GRANT_SENT,
        Moment.BEFORE_BEAT_COMMITS, Moment.AFTER_BEAT_COMMITS,
    ],
    "stored": [Moment.BEFORE_INGEST_COMMITS, Moment.AFTER_INGEST_COMMITS, Moment.AFTER_ACKNOWLEDGE],
    "closed": [Moment.AFTER_DISPATCH_COMMITS, Moment.BEFORE_CLOSE_COMMITS, Moment.AFTER_CLOSE_COMMITS],
}  # fmt: skip
"""Moments of each part of the test. Moments share a part only if a death at one of them does not prevent the others.

For example, a process that dies while it stores the last events closes no attempt, so these are two parts.
"""


def toy(seconds_per_item: float = 0.004) -> JSON:
    """Returns the spec of the job. `seconds_per_item` makes it quick or slow."""
    return {
        **LONG_TOY,
        "data": {"use": "toy/regression", "args": {"n": 256, "seconds_per_item": seconds_per_item}},
        "training": {**LONG_TOY["training"], "max_steps": 12, "save_steps": 3, "save_total_limit": 1},
        "retry": {"max_attempts": 10},
    }


@pytest.fixture(
    scope="module", params=["sqlite", pytest.param("postgres", marks=[pytest.mark.postgres, pytest.mark.matrix])]
)
def walk(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Walk]:
    folder = tmp_path_factory.mktemp("walk")
    processes, redis = Processes(folder), RedisServer().start()
    with database(request, folder) as url:
        yield Walk(System(processes, redis, url, mortal=True))
        processes.stop_all()
        redis.close()


@contextmanager
def database(request: pytest.FixtureRequest, folder: Path) -> Iterator[str]:
    if request.param == "sqlite":
        yield f"sqlite:///{folder / 'footplate.db'}"
    else:
        server: PostgresServer = request.getfixturevalue("postgres_server")
        with server.database() as url:
            yield url


def test_a_service_killed_between_any_two_steps_changes_no_result(walk: Walk) -> None:
    """The process that serves a job dies at each moment of the job's life."""
    for part, moments in SERVICE.items():
        walk.arm(moments)
        # A job that is to be frozen must be slow enough that it has not ended before.
        job = walk.submit(part, toy(seconds_per_item=0.02) if part == "granted" else None)
        with walk.frozen(job) if part == "granted" else nullcontext():
            walk.until_all_died()
        walk.until_ended(job)
        walk.compare(job)


def test_training_or_a_supervisor_killed_between_any_steps_changes_no_result(walk: Walk) -> None:
    """Processes die at every moment that the test above omits.

    Several jobs are lost at once, and the process that rescues or pauses them dies as well.
    """
    alone = {moment for moments in SERVICE.values() for moment in moments}
    walk.arm([moment for moment in Moment if moment not in alone])
    others = [walk.submit(f"trained-{number}") for number in range(6)]
    paused = walk.submit("paused")
    walk.pause_and_resume(paused)
    for job in (paused, *others):
        walk.until_ended(job)
    walk.until_all_died()
    for job in (paused, *others):
        walk.compare(job)


@pytest.mark.soak
@pytest.mark.parametrize("moment", list(Moment))
def test_a_process_killed_at_one_named_step_changes_no_result(walk: Walk, moment: Moment) -> None:
    """Finds the step that breaks, if the tests above fail."""
    walk.arm([moment])
    job = walk.submit(f"alone-{moment}", toy(seconds_per_item=0.05 if moment in RESCUES else 0.004))
    if moment in VERBS:
        walk.pause_and_resume(job)
    if moment in RESCUES:
        walk.kill_supervisor(job)
    walk.until_ended(job)
    walk.until_all_died()
    walk.compare(job)


class Walk:
    """A system whose processes are killed at chosen moments, and its jobs."""

    def __init__(self, system: System) -> None:
        self.system = system
        system.start_service()
        system.start_node(slots=3)
        undisturbed = system.submit(toy())
        system.until_settled(undisturbed)
        self.weights, self.losses = system.final_weights(undisturbed), system.losses(undisturbed)
        self.specs: dict[str, JSON] = {}
        """Specs by key, because a repeated request must be the same."""
        self.armed: set[str] = set()
        self.deaths: dict[str, int] = {}

    def arm(self, moments: list[Moment]) -> None:
        self.armed = {moment.value for moment in moments}
        preload.die_at(self.system.preload, {moment.value: LATER.get(moment, 1) for moment in moments})

    # -- what happens ------------------------------------------------------------------------------------------------

    def submit(self, key: str, spec: JSON | None = None) -> str:
        spec = self.specs.setdefault(key, spec or toy())
        return str(self.ask("/jobs", {**spec, "name": key}, key)["id"])

    def ask(self, path: str, body: JSON | None = None, key: str | None = None) -> JSON:
        """Repeats the same request until it is answered, as a careful client does."""
        headers = {"Idempotency-Key": key} if key else {}

        def answered() -> httpx2.Response:
            self.system.revive()
            return self.system.client.post(path, json=body, headers=headers)

        answer = self.system.processes.until(answered, within=60, what=f"POST {path} is answered")
        assert answer.status_code in (201, 202), answer.text
        return dict(answer.json())

    def pause_and_resume(self, job: str) -> None:
        self.ask(f"/jobs/{job}/pause")
        self.until(lambda: self.system.state(job) == "paused", job, "the job is paused")
        self.ask(f"/jobs/{job}/resume")

    def kill_supervisor(self, job: str) -> None:
        """Kills the supervisor of the job, so that control must rescue the job."""
        self.until(lambda: self.system.metrics(job), job, "the job trains")
        os.kill(supervisor_of(self.system, job), signal.SIGKILL)

    @contextmanager
    def frozen(self, job: str) -> Iterator[None]:
        """Freezes the training of a job, while its supervisor goes on sending requests."""
        self.until(lambda: self.system.training_pids(job), job, "training has started")
        training = self.system.training_pids(job)[0]
        os.kill(training, signal.SIGSTOP)
        yield
        with suppress(ProcessLookupError):
            os.kill(training, signal.SIGCONT)

    def until_ended(self, job: str) -> None:
        def has_ended() -> bool:
            now = self.system.job(job)
            if now["reason"] == "poison":
                # `poison` is right for a job that was lost three times before its first checkpoint. Users resume it.
                self.system.do(job, "resume")
            return now["state"] in ("succeeded", "failed") and now["reason"] != "poison"

        self.until(has_ended, job, "the job has ended")

    def until_all_died(self) -> None:
        """Waits until a process has died at every armed moment."""
        system = self.system
        with suppress(AssertionError):
            system.processes.until(self.all_died, within=60, what="a process has died at every armed moment")
        self.deaths = preload.deaths(system.preload)
        assert self.deaths.keys() == self.armed, f"no process died at {self.armed - self.deaths.keys()}"
        self.arm([])
        system.processes.until(self.answers, within=60, what="the service answers")

    def until(self, predicate: Callable[[], object], job: str, what: str) -> None:
        def supervised() -> object:
            self.system.revive()
            return predicate()

        self.system.until(supervised, within=180, what=what, job=job)

    def all_died(self) -> bool:
        self.system.revive()
        return preload.deaths(self.system.preload).keys() >= self.armed

    def answers(self) -> bool:
        self.system.revive()
        return self.system.client.get("/readyz").status_code == 200

    # -- what must be true -------------------------------------------------------------------------------------------

    def compare(self, job: str) -> None:
        system, story = self.system, f"{job} after deaths at {', '.join(self.deaths)}"
        outcome = system.job(job)
        again = self.submit(outcome["name"])
        assert outcome["state"] == "succeeded", f"{story}: {outcome}"
        assert again == job, f"{story}: the same Idempotency-Key made {again} too"
        assert [row["id"] for row in system.get("/jobs", name=outcome["name"])["data"]] == [job], story
        assert_whole(system.events(job))
        assert set(runs(system, job).values()) == {1}, f"{story}: an attempt was granted twice, {runs(system, job)}"
        assert system.losses(job) == self.losses, story
        assert system.final_weights(job) == self.weights, story
        self.until(lambda: not left_of(system, job), job, "nothing of it is left on its node")


def supervisor_of(system: System, job: str) -> int:
    """Returns the pid of the process that holds the job's journal."""
    for pid in children(system.nodes[1].pid):
        with suppress(OSError):
            if any(f"/journals/{job}-" in os.readlink(fd) for fd in Path(f"/proc/{pid}/fd").iterdir()):
                return pid
    raise AssertionError(f"no process supervises {job}")


def runs(system: System, job: str) -> Counter[str]:
    """Returns the number of supervisors of each attempt."""
    return Counter(re.findall(rf"{job} attempt (\d+) is granted to this node", system.nodes[1].output))


def left_of(system: System, job: str) -> list[object]:
    return [*system.training_pids(job), *(system.folder / "node-1" / "journals").glob(f"{job}-*")]
