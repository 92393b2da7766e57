"""Tests a node that is stopped or drained. Its attempts save a checkpoint first."""

from __future__ import annotations

from typing import Any

import pytest

from footplate.contract.messages import NodeBeat
from tests.support.processes import children, is_alive, until
from tests.support.redis_server import RedisServer
from tests.worker.conftest import NodeStarter
from tests.worker.fake_control import FakeControl

LONG: dict[str, Any] = {
    "data": {"use": "toy/regression", "args": {"seconds_per_item": 0.02}},
    "training": {"max_steps": 100_000, "logging_steps": 1, "save_strategy": "no"},
}
PLAIN_CELERY = ("-m", "celery", "-A", "worker.app", "worker")


def drained(control: FakeControl, job: str) -> None:
    outcome = control.done(job, within=20)
    assert (outcome["ending"], outcome["stop"], outcome["error"]) == ("stopped", "drain", None)
    assert len(control.of(job, "checkpoint")) == 1


@pytest.mark.parametrize(
    "argv",
    [
        pytest.param((), id="python -m worker"),
        pytest.param(PLAIN_CELERY, id="celery -A worker.app worker", marks=pytest.mark.matrix),
    ],
)
def test_sigterm_saves_a_checkpoint_of_every_job_and_ends_the_node(
    argv: tuple[str, ...], start_node: NodeStarter, control: FakeControl
) -> None:
    worker = start_node(*argv, slots=2)
    node = control.node()
    jobs = [control.submit(node, **LONG) for _ in range(2)]
    for job in jobs:
        control.await_kind(job, "log", within=60)
    everyone = children(worker.pid)

    assert worker.terminate(within=15) == 0

    for job in jobs:
        drained(control, job)
    assert control.nodes[node.node].draining is True
    until(lambda: not any(map(is_alive, everyone)), within=20, what="all processes of the node have ended")
    assert not list(start_node.journals.iterdir())


def test_a_drain_without_redis_saves_and_is_reported_at_the_next_start(
    start_node: NodeStarter, control: FakeControl, redis: RedisServer
) -> None:
    worker = start_node(drain_seconds=8)
    job = control.submit(control.node(), **LONG)
    control.await_kind(job, "log", within=60)
    redis.kill()

    worker.terminate(within=40)

    assert len(list(start_node.journals.iterdir())) == 1
    redis.start()
    start_node()
    until(lambda: control.of(job, "done"), within=30, what="the end is reported after the next start")
    drained(control, job)


def test_an_idle_node_ends_at_once_on_sigterm(start_node: NodeStarter, control: FakeControl) -> None:
    worker = start_node()
    control.node()

    assert worker.terminate(within=5) == 0


def test_a_node_drained_by_control_keeps_running_and_takes_no_job(
    start_node: NodeStarter, control: FakeControl
) -> None:
    worker = start_node()
    node: NodeBeat = control.node()
    job = control.submit(node, **LONG)
    control.await_kind(job, "log", within=60)

    control.drains = True

    drained(control, job)
    assert worker.is_running
    assert not control.nodes[node.node].draining
    late = control.submit(node, **LONG)
    numbers = control.nodes[node.node].number
    until(lambda: control.nodes[node.node].number > numbers + 3, what="time for a claim has passed")
    assert (late, 1) not in control.granted

    control.drains = False

    numbers = control.nodes[node.node].number
    until(lambda: control.nodes[node.node].number > numbers + 2, what="the node has read that its drain ended")
    control.send_start_message(node.node, late, 1)
    control.await_kind(late, "log")
