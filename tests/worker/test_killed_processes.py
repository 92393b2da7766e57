"""Tests kill -9 of each of the four processes of an attempt. Within a second, no process is left."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from footplate.contract.messages import NodeBeat
from tests.support.processes import Process, children, is_alive, until
from tests.support.redis_server import RedisServer
from tests.worker.conftest import NodeStarter
from tests.worker.fake_control import FakeControl

LONG: dict[str, Any] = {
    # A single long epoch, because each epoch has new data workers.
    "data": {"use": "toy/regression", "args": {"n": 100_000, "seconds_per_item": 0.02}},
    "training": {"max_steps": 100_000, "logging_steps": 1, "save_strategy": "no", "dataloader_num_workers": 2},
}


def command(pid: int) -> str:
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return file.read().replace(b"\0", b" ").decode()
    except OSError:
        return ""


def descendants(pid: int, folder: str) -> list[int]:
    """Returns the descendants that work below this folder. Other descendants may end meanwhile."""
    result = []
    for child in children(pid):
        with suppress(OSError):
            if os.readlink(f"/proc/{child}/cwd").startswith(folder):
                result.append(child)
    return result


def three(pids: list[int]) -> list[int]:
    return pids if len(pids) == 3 else []


class Running:
    """A running job with two loader children, and the pids of all its processes."""

    def __init__(self, worker: Process, control: FakeControl, node: NodeBeat, start: NodeStarter) -> None:
        self.worker, self.control = worker, control
        self.job = control.submit(node, **LONG)
        control.await_kind(self.job, "log", within=60)
        folder = str(start.artifacts / "jobs" / self.job)
        # Training and its two loader children. A library may fork another process for a moment.
        self.training = until(lambda: three(descendants(worker.pid, folder)), within=60, what="both loaders run")
        self.everyone = children(worker.pid)
        self.head = next(pid for pid in self.training if os.getpgid(pid) == pid)
        self.warm = next(
            pid for pid in self.everyone if "footplate.runtime.warm_parent" in command(pid) and pid not in self.training
        )
        self.supervisors = self._holders_of(start.journals.resolve().as_posix())
        self.supervisor = self.supervisors[0]

    def _holders_of(self, folder: str) -> list[int]:
        def holds(pid: int) -> bool:
            # The process may close the descriptor meanwhile, or end, like the process that describes the components.
            with suppress(FileNotFoundError):
                for fd in Path(f"/proc/{pid}/fd").iterdir():
                    with suppress(FileNotFoundError):
                        if os.readlink(fd).startswith(folder):
                            return True
            return False

        return [pid for pid in self.everyone if holds(pid)]

    def all_gone(self, pids: list[int]) -> None:
        # torch ends data workers by itself after five seconds.
        until(lambda: not any(map(is_alive, pids)), within=3, what="all processes have ended")


@pytest.fixture
def running(start_node: NodeStarter, control: FakeControl) -> Running:
    worker = start_node()
    return Running(worker, control, control.node(), start_node)


def run_another_job(running: Running, control: FakeControl) -> None:
    job = control.submit(control.node(), training={"max_steps": 3, "save_strategy": "no"})
    assert control.done(job, within=60)["ending"] == "finished"


def test_the_temporary_folder_of_killed_training_is_deleted(
    start_node: NodeStarter, control: FakeControl, monkeypatch: pytest.MonkeyPatch
) -> None:
    with TemporaryDirectory(prefix="fp-") as scratch:
        monkeypatch.setenv("TMPDIR", scratch)
        running = Running(start_node(), control, control.node(), start_node)
        until(lambda: list(Path(scratch).glob("footplate-*/pymp-*")), what="data workers use the attempt's own folder")

        os.kill(running.head, signal.SIGKILL)

        running.all_gone(running.training)
        assert control.done(running.job, within=20)["reason"] == "crashed"
        until(lambda: not list(Path(scratch).glob("footplate-*")), what="the attempt's folder is gone")
        run_another_job(running, control)


def test_a_killed_supervisor_is_reported_and_its_training_ends(running: Running, control: FakeControl) -> None:
    os.kill(running.supervisor, signal.SIGKILL)

    running.all_gone([*running.training, running.supervisor])
    beats = control.nodes[control.node().node].number
    until(lambda: control.nodes[control.node().node].number > beats + 1, what="the node still sends heartbeats")
    until(lambda: control.nodes[control.node().node].running == [], what="the node reports no running attempt")
    assert control.of(running.job, "done") == []
    seqs = [event["seq"] for event in control.of(running.job)]
    assert seqs == list(range(1, len(seqs) + 1))
    run_another_job(running, control)


def test_a_warm_parent_works_after_two_supervisors_and_trainings_were_killed(
    start_node: NodeStarter, control: FakeControl
) -> None:
    worker = start_node(slots=2)
    running = [Running(worker, control, control.node(), start_node) for _ in range(2)]
    warm = running[1].warm
    os.kill(warm, signal.SIGSTOP)
    for pid in (*running[1].supervisors, *(item.head for item in running)):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)

    # The warm parent handles all four ends in one turn of its loop.
    os.kill(warm, signal.SIGCONT)

    for running_job in running:
        running_job.all_gone(running_job.training)
    run_another_job(running[0], control)
    assert is_alive(warm)


def test_a_killed_warm_parent_ends_its_training(running: Running, control: FakeControl) -> None:
    os.kill(running.warm, signal.SIGKILL)

    running.all_gone([*running.training, running.warm])
    outcome = control.done(running.job, within=20)
    assert outcome["reason"] == "crashed"
    assert "warm parent" in outcome["error"]["message"]
    run_another_job(running, control)


def test_a_second_worker_in_the_same_folder_refuses_to_start(start_node: NodeStarter, control: FakeControl) -> None:
    start_node()
    control.node()
    second = start_node()

    assert second.wait() != 0
    assert f"another worker runs in {start_node.folder}" in second.output


def pool(worker: Process) -> list[int]:
    """Returns the pids of Celery's pool processes, which are the children that run the parent's own program."""
    return [pid for pid in children(worker.pid) if command(pid) == command(worker.pid)]


def settled_pool(worker: Process, control: FakeControl) -> list[int]:
    """Returns the pool processes without children that are about to run another program.

    The parent blocks until such a child has started its program, so a test that stops the child stops the node.
    """
    node = control.node().node
    pids, beats = pool(worker), control.nodes[node].number
    worker.until(lambda: control.nodes[node].number > beats + 1, within=10, what="the node sends heartbeats")
    return [pid for pid in pool(worker) if pid in pids]


def test_an_idle_node_that_consumes_no_messages_restarts(start_node: NodeStarter, control: FakeControl) -> None:
    worker = start_node()
    node = control.node()
    until(lambda: control.nodes[node.node].consuming, what="the node consumes messages")

    for pid in settled_pool(worker, control):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGSTOP)

    until(lambda: not control.nodes[node.node].consuming, within=15, what="the node reports that it does not consume")
    until(lambda: control.nodes[node.node].boot != node.boot, within=40, what="the node has restarted")
    assert worker.is_running
    job = control.submit(control.nodes[node.node], training={"max_steps": 3, "save_strategy": "no"})
    assert control.done(job, within=60)["ending"] == "finished"


def test_a_pool_process_killed_right_after_its_start_is_replaced(
    start_node: NodeStarter, control: FakeControl, redis: RedisServer
) -> None:
    redis.freeze()
    worker = start_node()
    until(lambda: len(pool(worker)) == 2, within=60, what="the pool has started and waits for Redis")

    os.kill(pool(worker)[-1], signal.SIGKILL)
    redis.thaw()

    job = control.submit(control.node(), training={"max_steps": 3, "save_strategy": "no"})
    worker.until(lambda: control.of(job, "done"), within=60, what="the node has run a job")


def test_a_node_that_is_claiming_an_attempt_does_not_restart(start_node: NodeStarter, control: FakeControl) -> None:
    worker = start_node()
    node = control.node()
    control.grants = False
    job = control.submit(node, training={"max_steps": 3, "save_strategy": "no"})
    until(lambda: job in control.unanswered, within=20, what="a pool process claims the attempt")
    processes = settled_pool(worker, control)
    for pid in processes:
        os.kill(pid, signal.SIGSTOP)
    beats = control.nodes[node.node].number

    until(lambda: control.nodes[node.node].number > beats + 45, within=40, what="the time for a new start has passed")
    control.grants = True
    for pid in processes:
        os.kill(pid, signal.SIGCONT)

    assert control.done(job, within=60)["ending"] == "finished"
    assert control.nodes[node.node].boot == node.boot


def test_a_node_with_a_running_attempt_does_not_restart(running: Running, control: FakeControl) -> None:
    node = control.node()
    for pid in settled_pool(running.worker, control):
        if pid != running.supervisor:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP)
    until(lambda: not control.nodes[node.node].consuming, within=15, what="the node reports that it does not consume")
    beats = control.nodes[node.node].number

    what = "the time for a new start has passed"
    running.worker.until(lambda: control.nodes[node.node].number > beats + 25, within=20, what=what)

    assert control.nodes[node.node].boot == node.boot
    assert not control.of(running.job, "done")
