"""Tests workers that are killed, frozen or drained. Their jobs continue elsewhere and lose only time."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

import pytest

from tests.faults.equal import assert_bit_equal
from tests.support.processes import Process, children, is_alive, until
from tests.support.system import LONG_TOY, SHORT, System, assert_whole

LEASE_SECONDS = float(SHORT["FOOTPLATE_LEASE_SECONDS"])


def node_of(system: System, job: str) -> Process:
    """Returns the worker that runs the newest attempt of the job."""
    [name] = [node["name"] for node in system.attempts(job)[-1]["nodes"]]
    return system.nodes[int(name.removeprefix("node-"))]


def steps_of(system: System, job: str, attempt: int) -> list[int]:
    return [event["step"] for event in system.events(job) if event["kind"] == "log" and event["attempt"] == attempt]


def checkpoints_of(system: System, job: str, attempt: int) -> list[int]:
    rows = system.get(f"/jobs/{job}/checkpoints?deleted=true")["data"]
    return sorted(row["step"] for row in rows if row["attempt"] == attempt)


@pytest.mark.fault(1, without="training dies with the worker", red="dies with its worker")
@pytest.mark.fault(1, without="the lease of an attempt", red="lost when its lease is over")
@pytest.mark.fault(1, without="a checkpoint restores random generators", red="not the same losses")
def test_a_killed_worker_loses_only_the_steps_since_the_last_checkpoint(system: System) -> None:
    system.start_service()
    system.start_node(1)
    system.start_node(2)
    # Training waits at this gate for ever. If training outlives its worker, it must not end by itself.
    gate = system.gate()
    quiet, job = system.submit(), system.submit(callbacks=[gate.at(25)])
    system.until_checkpoint(job, 20)
    system.until_reached(job, gate, 25)
    node = node_of(system, job)

    training = system.training_pids(job)

    node.kill()
    until(lambda: not any(map(is_alive, training)), within=1, what="training dies with its worker")
    what = "the attempt is lost when its lease is over"
    system.until(partial(system.has_ended, job, 1), within=LEASE_SECONDS + 10, what=what, job=job)

    assert system.attempts(job)[0]["reason"] == "node_lost"
    assert_bit_equal(system, job, quiet)
    assert (system.job(quiet)["attempt"], system.job(job)["attempt"]) == (1, 2)
    assert steps_of(system, job, 2)[0] == checkpoints_of(system, job, 1)[-1] + 1
    assert_whole(system.events(job))


def send(pid: int, number: signal.Signals) -> None:
    """Sends a signal to a process that may just have ended by itself."""
    with suppress(ProcessLookupError):
        os.kill(pid, number)


@contextmanager
def frozen(pids: list[int]) -> Iterator[Callable[[], None]]:
    def thaw() -> None:
        for pid in pids:
            send(pid, signal.SIGCONT)

    for pid in pids:
        send(pid, signal.SIGSTOP)
    try:
        yield thaw
    finally:
        thaw()


@pytest.mark.fault(4, without="the fence of heartbeats", red="frozen attempt")
@pytest.mark.fault(4, without="the fence of events", red="checkpoint of the frozen attempt")
def test_a_worker_frozen_past_its_lease_stops_and_changes_no_state(system: System) -> None:
    """Only the supervisor is frozen. Training goes on, saves, and has many events when the supervisor wakes up."""
    system.start_service()
    system.start_node(1)
    system.start_node(2)
    data = {"use": "toy/regression", "args": {"n": 256, "seconds_per_item": 0.005}}
    slow = {**LONG_TOY, "data": data, "training": {**LONG_TOY["training"], "max_steps": 80}}
    gate = system.gate()
    # Training waits at step 45 until it is stopped, so that it still runs when another attempt trains.
    job = system.submit(slow, callbacks=[gate.at(15, 45)])
    system.until_reached(job, gate, 15)
    system.until_checkpoint(job)
    node = node_of(system, job)
    family = children(node.pid)
    # The list is read after `children`, so that a data worker that was forked in between is not frozen.
    zombie = system.training_pids(job)
    with frozen([node.pid, *(pid for pid in family if pid not in zombie)]) as thaw:
        gate.open(15)
        system.until_reached(job, gate, 45)
        system.until(
            partial(system.has_ended, job, 1), within=LEASE_SECONDS + 10, what="the first attempt is lost", job=job
        )
        system.until(lambda: steps_of(system, job, 2), within=30, what="the second attempt trains", job=job)
        checkpoints = checkpoints_of(system, job, 1)
        steps = [int(path.name.removeprefix("checkpoint-")) for path in _attempt_folder(system, job, 1).glob("check*")]
        assert max(steps) > max(checkpoints), "the frozen worker's training has gone on and saved"
        assert any(map(is_alive, zombie)), "the frozen worker's training still runs"
        thaw()

        stops = "the frozen attempt stops within 5 s"
        system.until(lambda: not any(map(is_alive, zombie)), within=5, what=stops, job=job)
    quiet = system.submit(slow)
    assert_bit_equal(system, job, quiet)

    final_checkpoints = checkpoints_of(system, job, 1)
    assert final_checkpoints == checkpoints, (
        f"a checkpoint of the frozen attempt was taken: {set(final_checkpoints) - set(checkpoints)}"
    )
    assert system.states(job) == ["queued", "starting", "running", "queued", "starting", "running", "succeeded"]
    assert system.job(job)["attempt"] == 2
    assert system.attempts(quiet)[0]["nodes"][0]["name"] == system.attempts(job)[0]["nodes"][0]["name"]
    assert_whole(system.events(job))


def _attempt_folder(system: System, job: str, attempt: int) -> Path:
    return system.folder / "artifacts" / "jobs" / job / "attempts" / str(attempt)


@pytest.mark.fault(19, without="a drain saves a checkpoint", red="makes steps run again")
@pytest.mark.fault(19, without="a drain costs no retry", red="a drain has cost")
def test_a_drained_node_returns_its_jobs_without_losing_steps(system: System) -> None:
    """Three nodes share a folder. The first drains once and then twice, and the second is killed while it drains."""
    markers = system.processes.folder / "markers"
    # Training is not killed for a late stop, even on a slow machine.
    system.environment["FOOTPLATE_STOP_SECONDS"] = "300"
    system.start(slots=3)
    once = {"retry": {"max_attempts": 1}, "training": {**LONG_TOY["training"], "max_steps": 80}}
    hang = {"use": "test/training_fault", "args": {"do": "hang", "markers": str(markers), "steps": [25, 45]}}
    gate = system.gate()
    willing, deaf = system.submit(callbacks=[gate.at(14)], **once), system.submit(callbacks=[hang], **once)
    system.until((markers / "25").exists, within=60, what="the second job hangs in step 25", job=deaf)
    system.until_reached(willing, gate, 14)

    system.nodes[1].signal(signal.SIGTERM)
    what = "the first job has left the node"
    system.until(partial(system.has_ended, willing, 1), within=20, what=what, job=willing)
    assert system.attempts(willing)[0]["reason"] == "drain"
    assert system.state(willing) == "queued", f"a drain has cost it a try: {system.job(willing)}"
    last, save = steps_of(system, willing, 1)[-1], checkpoints_of(system, willing, 1)[-1]
    assert last == save, f"it ran to step {last} and saved step {save}, so that a drain makes steps run again"
    system.until_state(deaf, "stopping")
    system.nodes[1].signal(signal.SIGTERM)
    system.nodes[1].wait(within=5)

    system.start_node(1, slots=3)
    quiet = system.submit(**once)
    assert_bit_equal(system, willing, quiet)
    assert steps_of(system, willing, 2)[0] == save + 1
    system.until((markers / "45").exists, within=60, what="the second job hangs in step 45", job=deaf)
    assert steps_of(system, deaf, 2)[0] == 21

    system.nodes[1].signal(signal.SIGTERM)
    system.until_state(deaf, "stopping")
    system.nodes[1].kill()

    system.start_node(1)
    assert_bit_equal(system, deaf, quiet)
    assert steps_of(system, deaf, 3)[0] == 41
    assert system.job(deaf)["attempt"] == 3
    assert_whole(system.events(deaf))
