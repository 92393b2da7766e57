"""Tests actions of users in every state, repeated, fifty at once, at the end of a job, and while the service dies."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from random import Random
from threading import Barrier

import httpx2
import pytest

from footplate.contract.crash_points import Moment
from footplate.contract.ids import JobId
from footplate.contract.lifecycle import MOVES, JobState
from service.store.database import Database
from service.store.times import now_ms
from tests.conformance.acting import Stage, Worker
from tests.support import preload
from tests.support.processes import Processes
from tests.support.redis_server import RedisServer
from tests.support.system import JSON, LONG_TOY, System, assert_whole

SEED = 20240613
AT_ONCE = 50

# -- every verb at every state, twice ----------------------------------------------------------------------------------

Act = Callable[[Stage, JobId], Worker | None]


def queued(stage: Stage, job: JobId) -> None:
    """Does nothing, because a job is queued once it is submitted."""


def starting(stage: Stage, job: JobId) -> None:
    stage.place()


def claimed(stage: Stage, job: JobId) -> Worker:
    stage.place()
    return stage.claim(job)


def running(stage: Stage, job: JobId) -> Worker:
    worker = claimed(stage, job)
    worker.says_running()
    return worker


def draining(stage: Stage, job: JobId) -> Worker:
    worker = running(stage, job)
    stage.beat_node(worker.node, draining=True)
    stage.beat_node(worker.node)
    return worker


def ending(how: str, reason: str) -> Act:
    def act(stage: Stage, job: JobId) -> None:
        running(stage, job).ends(how, reason)

    return act


def send_verb(verb: str, mode: str | None = None) -> Callable[[System, str], None]:
    def send(system: System, job: str) -> None:
        answer = system.do(job, verb, {"mode": mode} if mode else None)
        assert answer.status_code == 202, answer.text

    return send


def nothing(system: System, job: str) -> None: ...


SITUATIONS: dict[str, tuple[Act, Callable[[System, str], None], str]] = {
    "queued": (queued, nothing, "queued"),
    "starting": (starting, nothing, "starting"),
    "claimed": (claimed, nothing, "starting"),
    "running": (running, nothing, "running"),
    "cancelling": (running, send_verb("cancel", "checkpoint"), "stopping"),
    "cancelling gracefully": (running, send_verb("cancel", "graceful"), "stopping"),
    "cancelling by kill": (running, send_verb("cancel", "kill"), "stopping"),
    "pausing": (running, send_verb("pause"), "stopping"),
    "draining": (draining, nothing, "stopping"),
    "paused": (queued, send_verb("pause"), "paused"),
    "succeeded": (ending("finished", "completed"), nothing, "succeeded"),
    "failed": (ending("failed", "error"), nothing, "failed"),
    "cancelled": (queued, send_verb("cancel"), "cancelled"),
}
"""An action of the worker, an action of the user, and the state of the job after both, for each situation."""

OK, DONE, NO = 202, 204, 409
VERBS = ("cancel", "pause", "resume", "delete")
ANSWERS: dict[str, tuple[tuple[int, str], ...]] = {
    "queued": ((OK, "cancelled"), (OK, "paused"), (OK, "queued"), (NO, "queued")),
    "starting": ((OK, "cancelled"), (OK, "paused"), (OK, "starting"), (NO, "starting")),
    "claimed": ((OK, "stopping"), (OK, "stopping"), (OK, "starting"), (NO, "starting")),
    "running": ((OK, "stopping"), (OK, "stopping"), (OK, "running"), (NO, "running")),
    "cancelling": ((OK, "stopping"), (NO, "stopping"), (NO, "stopping"), (NO, "stopping")),
    "cancelling gracefully": ((OK, "stopping"), (NO, "stopping"), (NO, "stopping"), (NO, "stopping")),
    "cancelling by kill": ((OK, "stopping"), (NO, "stopping"), (NO, "stopping"), (NO, "stopping")),
    "pausing": ((OK, "stopping"), (OK, "stopping"), (OK, "stopping"), (NO, "stopping")),
    "draining": ((OK, "stopping"), (OK, "stopping"), (OK, "stopping"), (NO, "stopping")),
    "paused": ((OK, "cancelled"), (OK, "paused"), (OK, "queued"), (NO, "paused")),
    "succeeded": ((NO, "succeeded"), (NO, "succeeded"), (NO, "succeeded"), (DONE, "")),
    "failed": ((NO, "failed"), (NO, "failed"), (OK, "queued"), (DONE, "")),
    "cancelled": ((OK, "cancelled"), (NO, "cancelled"), (OK, "queued"), (DONE, "")),
}
"""The status code of each verb in `VERBS`, and the state of the job after the verb, for each situation."""


@pytest.fixture
def stage(system: System) -> Iterator[Stage]:
    """Yields a stage that acts as control and workers in this process, on the database of the service."""
    database = Database(system.environment["FOOTPLATE_DATABASE"], readers=1, writers=1)
    stage = Stage(database)
    stage.now = now_ms()
    yield stage
    database.close()


@pytest.mark.fault(13, without="changes of state are guarded", red=r"answered 20\d, not 409")
def test_every_action_in_every_state_has_one_repeatable_answer(system: System, stage: Stage) -> None:
    system.start_service("api")
    for situation, answers in ANSWERS.items():
        for verb, (status, state) in zip(VERBS, answers, strict=True):
            it_answers(system, stage, situation, verb, status, state)


def it_answers(system: System, stage: Stage, situation: str, verb: str, status: int, state: str) -> None:
    act, say, stands = SITUATIONS[situation]
    node = stage.node(slots=1)
    job = JobId(system.submit({"model": "toy/mlp", "data": "toy/regression"}))
    worker = act(stage, job)
    say(system, job)
    assert system.state(job) == stands
    before = system.job(job)

    first = ask(system, job, verb)
    assert first.status_code == status, (
        f"{verb} of a job that is {situation} answered {first.status_code}, not {status}"
    )
    if status == NO:
        problem = first.json()
        assert (problem["state"], problem["allowed"]) == (stands, before["actions"]), problem
        assert system.job(job) == before
    elif status == OK:
        assert (first.json()["state"], first.json()["version"]) == (state, system.job(job)["version"])
    amended = system.client.patch(f"/jobs/{job}", json={"name": situation}, headers={"If-Match": etag(before)})
    expected = 404 if status == DONE else 412 if has_changed(first, before) else 200
    assert amended.status_code == expected, f"amend after {verb} of {situation}: {amended.status_code}"

    version = None if status == DONE else system.job(job)["version"]
    second = ask(system, job, verb)
    again = 404 if status == DONE else status
    assert second.status_code == again, f"the second {verb} of {situation} answered {second.status_code}, not {again}"
    if version is not None:
        after = system.job(job)
        assert (after["state"], after["version"]) == (state, version), f"the second {verb} changed {situation}: {after}"
        end_job(system, stage, job, worker)
    stage.beat_node(node, boot="gone", slots=0)


def ask(system: System, job: str, verb: str) -> httpx2.Response:
    return system.client.delete(f"/jobs/{job}") if verb == "delete" else system.do(job, verb)


def etag(job: JSON) -> str:
    return f'"{job["version"]}"'


def has_changed(answer: httpx2.Response, before: JSON) -> bool:
    return answer.status_code == OK and answer.json()["version"] != before["version"]


def end_job(system: System, stage: Stage, job: JobId, worker: Worker | None) -> None:
    """Ends the job, and checks that a cancelled job ends as cancelled and that no job is stuck."""
    desired, row = system.job(job)["desired"], system.job(job)
    if worker is None or row["state"] not in ("starting", "running", "stopping"):
        system.do(job, "cancel")
        if system.state(job) not in ("succeeded", "failed", "cancelled"):
            raise AssertionError(f"stuck: {system.job(job)}")
        return
    worker.finishes()
    ended_as = "cancelled" if desired == "cancel" else "succeeded"
    assert system.state(job) == ended_as, system.job(job)


# -- while it succeeds, and fifty at once ------------------------------------------------------------------------------

BRIEF = {**LONG_TOY, "training": {**LONG_TOY["training"], "max_steps": 16}}


@pytest.mark.fault(13, without="cancel wins", red="succeeded after its cancel was acknowledged")
def test_racing_actions_have_one_outcome_and_leave_nothing_behind(system: System) -> None:
    system.start(slots=3)
    a_cancel_that_was_acknowledged_beats_a_success_that_was_on_its_way(system)
    fifty_at_once_leave_one_outcome_and_no_process(system)


def a_cancel_that_was_acknowledged_beats_a_success_that_was_on_its_way(system: System) -> None:
    """Both jobs have trained to their end, but no event has arrived, because Redis is frozen."""
    gates = [system.gate(), system.gate()]
    cancelled, paused = (system.submit(BRIEF, callbacks=[gate.at(3)]) for gate in gates)
    for job, gate in zip((cancelled, paused), gates, strict=True):
        system.until_reached(job, gate, 3)
        system.until_state(job, "running")
    system.redis.freeze()
    for gate in gates:
        gate.open(3)
    for job in (cancelled, paused):
        report = system.folder / "artifacts" / "jobs" / job / "attempts" / "1" / "outputs" / "metrics.json"
        system.until(report.exists, within=60, what="the job has written its outputs", job=job)
    answers = at_once([lambda: system.do(cancelled, "cancel"), lambda: system.do(paused, "pause")] * 5)
    assert {answer.status_code for answer in answers} == {202}
    system.redis.thaw()

    outcome = system.until_settled(cancelled)
    assert outcome["state"] == "cancelled", f"it {outcome['state']} after its cancel was acknowledged"
    assert (outcome["reason"], outcome["desired"]) == ("finished_first", "cancel"), outcome
    assert system.get(f"/jobs/{cancelled}/outputs")["data"], "its outputs are kept"
    assert system.until_settled(paused)["state"] == "succeeded"


def fifty_at_once_leave_one_outcome_and_no_process(system: System) -> None:
    jobs = [system.submit(LONG_TOY) for _ in range(3)]
    for job in jobs:
        system.until_step(job, 1)
    random = Random(SEED)
    for verbs in ("cancel pause resume resume amend", "cancel pause resume resume amend", "cancel resume delete amend"):
        answers = at_once([a_verb(system, random, verbs.split(), jobs) for _ in range(AT_ONCE)])
        odd = [answer.text for answer in answers if answer.status_code not in (200, 202, 204, 404, 409, 412)]
        assert not odd, odd
        for job in jobs:
            system.until(
                lambda job=job: not is_stopping(system, job),
                within=60,
                what="the job is not stopping any more",
                job=job,
            )
    for job in jobs:
        if system.client.get(f"/jobs/{job}").status_code == 200:
            was_acknowledged = system.do(job, "cancel", {"mode": "kill"}).status_code == 202
            outcome = system.until_state(job, "succeeded", "failed", "cancelled")
            # On a slow machine the job may have ended between the verbs of the other clients.
            expected = ("cancelled",) if was_acknowledged else ("cancelled", "succeeded")
            assert outcome["state"] in expected, f"it {outcome['state']} after its cancel was acknowledged"
            assert_history_is_lawful(system.events(job))
        what = f"no process of {job} is left, data workers included"
        system.processes.until(lambda job=job: not system.training_pids(job), within=10, what=what)


def is_stopping(system: System, job: str) -> bool:
    result = system.client.get(f"/jobs/{job}")
    return result.status_code == 200 and result.json()["state"] == "stopping"


def a_verb(system: System, random: Random, verbs: list[str], jobs: list[str]) -> Callable[[], httpx2.Response]:
    verb, job = random.choice(verbs), random.choice(jobs)
    if verb == "amend":
        headers = {"If-Match": f'"{random.randint(1, 9)}"'} if random.random() < 0.5 else {}
        return lambda: system.client.patch(f"/jobs/{job}", json={"priority": 1}, headers=headers)
    if verb == "delete":
        return lambda: system.client.delete(f"/jobs/{job}")
    body = {"mode": random.choice(["checkpoint", "graceful", "kill"])} if verb == "cancel" else None
    return lambda: system.do(job, verb, body)


def at_once(asks: list[Callable[[], httpx2.Response]]) -> list[httpx2.Response]:
    barrier = Barrier(len(asks))

    def ask(request: Callable[[], httpx2.Response]) -> httpx2.Response:
        barrier.wait()
        return request()

    with ThreadPoolExecutor(len(asks)) as threads:
        return list(threads.map(ask, asks))


def assert_history_is_lawful(events: list[JSON]) -> None:
    """Checks that every change of state is allowed, and that a cancelled job succeeds only after a resume."""
    assert_whole(events)
    states = [event["data"] for event in events if event["kind"] == "state"]
    for old, new in pairwise(JobState(data["state"]) for data in states):
        # A stricter stop repeats the same state with another reason.
        assert new is old or new in MOVES[old], f"{old} -> {new}"
    was_cancelled = False
    for data in states:
        if data["state"] in ("stopping", "cancelled") and data.get("reason") == "cancel":
            was_cancelled = True
        if data["state"] == "queued":
            was_cancelled &= data.get("reason") != "resumed"
        assert not (was_cancelled and data["state"] == "succeeded"), "it succeeded after its cancel was acknowledged"


# -- a delete that is cut off ------------------------------------------------------------------------------------------


@pytest.fixture
def mortal(processes: Processes, redis: RedisServer, database_url: str, protection_off: list[str]) -> System:
    return System(processes, redis, database_url, without=protection_off, mortal=True)


@pytest.mark.fault(13, without="prune removes folders of deleted jobs", red="no folder of the deleted job is left")
def test_a_delete_interrupted_by_a_crash_leaves_no_folder_in_the_end(mortal: System) -> None:
    mortal.start_service()
    job = mortal.submit(LONG_TOY)
    folder = mortal.folder / "artifacts" / "jobs" / job
    stray: Path = folder / "attempts" / "1" / "checkpoint-10" / "model.safetensors"
    stray.parent.mkdir(parents=True)
    stray.write_bytes(b"of a job that is deleted")
    assert mortal.do(job, "cancel").json()["state"] == "cancelled"

    preload.die_at(mortal.preload, {Moment.AFTER_VERB_COMMITS: 1})
    with pytest.raises(httpx2.TransportError):
        mortal.client.delete(f"/jobs/{job}")
    assert mortal.services["all"].wait(20) < 0
    assert folder.exists(), "the folder was removed before the service died"
    mortal.start_service()

    assert mortal.client.get(f"/jobs/{job}").status_code == 404
    mortal.processes.until(lambda: not folder.exists(), within=20, what="no folder of the deleted job is left")
    assert mortal.client.delete(f"/jobs/{job}").status_code == 404
