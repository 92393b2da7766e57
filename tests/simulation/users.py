"""Simulated users, who submit, change their minds at any moment, repeat requests, and lose answers."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any

from footplate.contract.errors import Conflict, NotFound, Unavailable
from footplate.contract.ids import JobId
from footplate.contract.lifecycle import JobState, StopMode
from footplate.contract.spec import JobSpec
from tests.conformance.acting import Stage
from tests.simulation.control import SETTINGS
from tests.simulation.training import Plan
from tests.support.factories import make_spec

if TYPE_CHECKING:
    from tests.simulation.railway import Railway


class SimulatedStage(Stage):
    """The `Stage` of tests/conformance, with the database and the clock of the simulation."""

    def __init__(self, railway: Railway) -> None:
        self.db, self.settings, self._world = railway.sql, SETTINGS, railway.world  # type: ignore[assignment]

    @property
    def now(self) -> int:  # type: ignore[override]
        return self._world.now_ms()


@cache
def a_spec(nodes: int, time_limit: int | None, keep: int | None = None) -> tuple[JobSpec, str]:
    """Returns a spec and its JSON, which are parsed once for all seeds."""
    resources = {"time_limit": time_limit, "stall_limit": 15, "nodes": nodes}
    spec = make_spec(resources=resources, retry={"max_attempts": 6}, training={"save_total_limit": keep})
    return spec, json.dumps(spec.as_json())


class Users:
    def __init__(self, railway: Railway) -> None:
        self.railway, self.world, self.stage = railway, railway.world, SimulatedStage(railway)
        self.jobs: list[JobId] = []
        self.ids_by_key: dict[str, JobId] = {}

    def begin(self) -> None:
        for number in range(self.world.dice.randint(1, 4)):
            self.world.after(self.world.between(0, 8), self.submit, number)
        if "users" in self.world.weather.faults:
            for _ in range(self.world.dice.randint(1, 8)):
                self.world.after(self.world.between(1, 30), self.change_a_mind)

    def submit(self, number: int) -> None:
        """Submits a job until there is an answer. Each request has a new job id, but the key allows only one job."""
        world, dice = self.world, self.world.dice
        shape = 1 if dice.random() < 0.85 else 2, dice.choice([None, None, None, 5])
        key = f"key-{number}"
        plan = a_plan(self.railway)
        spec, text = a_spec(*shape, plan.keep if world.rotates else None)

        def request(job_id: JobId) -> None:
            try:
                job = self.stage.submit_spec(spec, text, job_id, key).job
            except Unavailable:
                world.after(1.0, request, job_id)
                return
            self.railway.plans.setdefault(job.id, plan)
            self.railway.books.keep.setdefault(job.id, plan.keep)
            if job.id == job_id:
                world.call(job_id, f"job{number + 1}")
                world.must(key not in self.ids_by_key, "the same key made another job")
                self.ids_by_key[key] = job_id
            if world.chance(3 * world.weather.half):
                # The API process died after its commit, so the user got no answer.
                world.after(0.5, request, world.new_job())
                return
            world.say("user", "has submitted {}: {} nodes, {}", job.id, spec.resources.nodes, plan)
            self.railway.books.acknowledged.add(job.id)
            self.jobs.append(job.id)
            self._wake_control()

        request(world.new_job())

    def change_a_mind(self) -> None:
        if not self.jobs:
            return
        dice = self.world.dice
        job = dice.choice(self.jobs)
        verb = dice.choice(["cancel", "pause", "resume", "resume", "delete", "amend"])
        for _ in range(dice.choice([1, 1, 2])):
            self.say(verb, job)

    def say(self, verb: str, job: JobId) -> None:
        world, books = self.world, self.railway.books
        mode, priority = world.dice.choice(list(StopMode)), world.dice.randint(0, 9)
        verbs: dict[str, Callable[[], Any]] = {
            "cancel": lambda: self.stage.cancel(job, mode),
            "pause": lambda: self.stage.pause(job),
            "resume": lambda: self.stage.resume(job),
            "delete": lambda: self.stage.delete(job),
            "amend": lambda: self.stage.amend(job, {"priority": priority}),
        }
        was_deleted = job in books.deleted
        if verb == "delete":
            # The deletion is noted before the commit is checked, and withdrawn if the API refuses it.
            books.deleted.add(job)
        if verb == "resume":
            cancelled = job in books.cancelled
            books.cancelled.discard(job)
        try:
            row = verbs[verb]()
        except (Conflict, NotFound, Unavailable) as error:
            world.say("user", "may not {} {}: {}", verb, job, error)
            if verb == "delete" and not was_deleted and not isinstance(error, NotFound):
                books.deleted.discard(job)
            if verb == "resume" and cancelled:
                books.cancelled.add(job)
            return
        world.say("user", "says {} to {}", verb if verb != "cancel" else f"cancel ({mode.value})", job)
        if verb == "cancel":
            assert row.state in (JobState.CANCELLED, JobState.STOPPING)
            books.cancelled.add(job)
        if verb == "pause":
            assert row.state in (JobState.PAUSED, JobState.STOPPING)
        self._wake_control()

    def _wake_control(self) -> None:
        """Wakes the control that works, unless Redis is unreachable."""
        if self.railway.control is not None and not self.railway.redis.is_unavailable:
            self.railway.control.wake()


def a_plan(railway: Railway) -> Plan:
    dice, faults = railway.world.dice, railway.world.weather.faults
    steps = dice.choice([2, 5, 10, 20])
    return Plan(
        steps=steps,
        save_every=dice.choice([1, 1, 2, 4]),
        keep=dice.randint(1, 2),
        crashes=dice.choice([0.0, 0.0, 0.1]) if "crashes" in faults else 0.0,
        is_poison="poison" in faults and dice.random() < 0.2,
        never_starts="hangs" in faults and dice.random() < 0.15,
        ignores_stops="deaf" in faults and dice.random() < 0.2,
        reason=dice.choice(["crashed", "crashed", "error", "oom"]),
    )
