"""Tests each fault that a seed of the simulation has revealed by its shortest sequence of steps, on both databases."""

from __future__ import annotations

import json

import pytest

from footplate.contract.events import Kind
from footplate.contract.lifecycle import JobState, Reason
from footplate.contract.messages import Grant
from service.jobs.rescue import Timers
from service.settings import ServiceSettings
from tests.conformance.acting import Stage

HOUR_SECONDS = 3600


def test_a_wall_clock_set_back_does_not_lengthen_a_backoff(stage: Stage) -> None:
    stage.settings = ServiceSettings(retry_backoff_seconds=5)
    job, worker = stage.running(retry={"backoff": 5})
    worker.fails()
    assert stage.place() == []

    stage.now -= HOUR_SECONDS * 1000

    assert stage.place() == [job]


def test_an_attempt_that_sends_heartbeats_and_never_runs_is_retried(stage: Stage) -> None:
    """The supervisor hangs. A working supervisor would have noticed that training is silent."""
    stage.settings = ServiceSettings(start_seconds=100, retry_backoff_seconds=0)
    stage.node()
    job = stage.submit(resources={"stall_limit": 200})
    stage.place()
    worker = stage.claim(job)
    stage.rescue()

    for _ in range(19):
        stage.later(10)
        worker.beat()
        assert not stage.rescue().jobs
    stage.later(11)
    worker.beat()
    rescued = stage.rescue()

    assert rescued.counts.attempts_lost == 1
    row = stage.job(job)
    assert (row.state, row.reason, row.failed_attempts) == (JobState.QUEUED, Reason.RETRY, 1)
    assert json.loads(row.error or "")["code"] == "stalled"
    assert worker.beat().superseded


def test_every_node_of_an_attempt_continues_from_the_same_checkpoint(stage: Stage) -> None:
    """The second node's claim is granted after the first node has saved a checkpoint."""
    for _ in range(2):
        stage.node(slots=1)
    job = stage.submit(nodes=2)
    stage.place()
    stage.claim(job, source=0).checkpoints(5)
    late = stage.claim(job, source=1)

    assert isinstance(late.answer, Grant)
    assert late.answer.checkpoints == []


def test_a_long_queue_of_one_shape_delays_no_other_shape(stage: Stage) -> None:
    stage.node(slots=2)
    impossible = [stage.submit(resources={"pool": "nowhere"}, priority=9) for _ in range(10)]
    possible = [stage.submit() for _ in range(5)]

    placed = stage.place()

    assert placed == possible[:2]
    assert {stage.job(job).reason for job in impossible} == {Reason.NO_SUCH_SHAPE}
    assert {stage.job(job).reason for job in possible[2:]} == {Reason.CAPACITY}


def test_only_the_current_attempt_gets_checkpoints_acknowledged(stage: Stage) -> None:
    """A superseded attempt whose late checkpoint is acknowledged would delete the one that the next attempt needs."""
    job, worker = stage.running()
    report = worker.checkpoints(5).replies[worker.claim]
    assert (report.stored_step, report.superseded) == (5, False)
    stage.rescue()
    stage.later(stage.settings.lease_seconds + 1)
    assert stage.rescue().counts.attempts_lost == 1

    late = worker.checkpoints(10).replies[worker.claim]

    assert (late.watermark, late.superseded, late.stored_step) == (3, True, None)
    assert worker.beat().stored_step is None
    stage.node()
    assert stage.place() == [job]
    after = stage.claim(job)
    assert after.beat().stored_step is None
    after.checkpoints(10)
    assert after.beat().stored_step == 10


@pytest.mark.parametrize("hours", [-1, 1])
def test_a_jump_of_the_wall_clock_does_not_change_the_time_of_a_stop(stage: Stage, hours: int) -> None:
    job, worker = stage.running()
    stage.pause(job)
    stage.rescue()

    stage.later(10)
    stage.now += hours * HOUR_SECONDS * 1000
    reply = worker.beat()

    assert reply.stop is not None
    assert reply.stop.within_seconds == pytest.approx(stage.settings.stop_seconds - 10, abs=0.1)


@pytest.mark.own_statement
@pytest.mark.parametrize("hours", [-1, 1])
def test_a_jump_of_the_wall_clock_does_not_change_the_time_that_an_attempt_ran(stage: Stage, hours: int) -> None:
    job, worker = stage.running()
    stage.rescue()
    worker.send(worker.write(Kind.SYSTEM, {"running_s": 40.5}))
    worker.send(worker.write(Kind.SYSTEM, {"running_s": "a while"}))

    stage.now += hours * HOUR_SECONDS * 1000
    stage.later(stage.settings.lease_seconds + 1)

    assert stage.rescue().counts.attempts_lost == 1
    assert stage.job(job).running_ms == 40_500


def test_an_attempt_read_before_an_outage_gets_a_full_lease_after_it() -> None:
    timers = Timers()
    timers.restart_all(20.0)

    timers.renew("an attempt", 1, 19.0)

    assert timers.elapsed("an attempt", 21.0) == 1.0
