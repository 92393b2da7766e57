"""Tests how control and SQL handle a job on several nodes, which starts and ends on all of its nodes together."""

from __future__ import annotations

import json

import pytest

from footplate.contract.ids import JobId, new_claim_id
from footplate.contract.lifecycle import JobState, Reason
from footplate.contract.messages import AttemptReply, Denial, Grant
from service.jobs.inbox import answer
from service.jobs.rescue import node_key
from service.settings import ServiceSettings
from service.store import attempts
from tests.conformance.acting import Stage, Worker

FIRST = "10.0.0.1:29500"


def placed_job(stage: Stage, nodes: int = 2, **changes: object) -> JobId:
    """Returns a job that is placed on its nodes and not yet claimed by any of them."""
    for _ in range(nodes):
        stage.node(slots=1)
    job = stage.submit(nodes=nodes, **changes)
    assert stage.place() == [job]
    return job


def running(stage: Stage, nodes: int = 2, **changes: object) -> tuple[JobId, list[Worker]]:
    job = placed_job(stage, nodes, **changes)
    workers = [stage.claim(job, source) for source in range(nodes)]
    for worker in workers:
        worker.says_running()
    return job, workers


def held(stage: Stage) -> list[str]:
    return [part.node for part in stage.read(attempts.open_sources)]


def test_after_the_last_claim_the_other_nodes_get_the_rendezvous_at_once(stage: Stage) -> None:
    job = placed_job(stage)
    first = stage.claim(job, 0)
    part = stage.sources(job)[1]
    late = first.claim_message().model_copy(update={"claim": new_claim_id(), "node": part.node, "boot": part.boot})

    effects = stage.write(lambda conn: answer(conn, [late], stage.now, stage.settings, stage.stop_left))

    replies = [message for _, message in effects.replies if isinstance(message, AttemptReply)]
    assert [(reply.claim, reply.rendezvous) for reply in replies] == [(first.claim, FIRST)]


def test_a_job_on_one_node_has_no_rendezvous(stage: Stage) -> None:
    _, worker = stage.running()

    assert isinstance(worker.answer, Grant)
    assert (worker.answer.nodes, worker.answer.rendezvous, worker.beat().rendezvous) == (1, None, None)


def test_a_cancel_stops_nodes_that_wait_for_the_last_claim_and_denies_that_claim(stage: Stage) -> None:
    job = placed_job(stage)
    first = stage.claim(job, 0)
    stage.cancel(job)
    assert first.beat().stop is not None

    first.stops()

    assert stage.job(job).state is JobState.CANCELLED
    assert isinstance(stage.ask(job, 1).answer, Denial)


def test_a_job_on_several_nodes_is_running_once_all_its_nodes_train(stage: Stage) -> None:
    job, _ = running(stage)

    assert stage.states(job) == ["queued", "starting", "running"]
    assert any("running on node 1 of 2" in event.data for event in stage.events(job, ["note"]))


def test_a_lost_node_is_the_reason_and_not_the_errors_that_its_loss_caused(stage: Stage) -> None:
    job, (first, second) = running(stage)
    first.checkpoints(10)
    stage.rescue()
    first.ends(
        "failed", "crashed", is_follow_up=True, error={"code": "peer_lost", "message": "Connection closed by peer"}
    )
    stage.later(stage.settings.lease_seconds + 1)

    stage.rescue()

    row = stage.job(job)
    assert (row.state, row.reason, row.failed_attempts) == (JobState.QUEUED, Reason.RETRY, 1)
    error = json.loads(str(row.error))
    assert error["code"] == "node_lost"
    assert f"heartbeat from {second.node[-6:]}" in error["message"]
    again = stage.place()
    assert again == []
    stage.node(slots=1)
    stage.node(slots=1)
    assert stage.place() == [job]
    next_one = stage.claim(job, 0)
    assert isinstance(next_one.answer, Grant)
    assert [offer.step for offer in next_one.answer.checkpoints] == [10]


def test_a_reported_failure_stays_the_reason_if_another_node_is_lost(stage: Stage) -> None:
    job, (_, second) = running(stage)
    stage.rescue()
    second.fails("oom")
    stage.later(stage.settings.lease_seconds + 1)

    stage.rescue()

    assert (stage.job(job).state, stage.job(job).reason) == (JobState.FAILED, Reason.OOM)


def test_the_first_node_may_write_outputs_after_the_others_have_finished(stage: Stage) -> None:
    job, (first, second) = running(stage)
    second.finishes()
    for _ in range(9):
        stage.rescue()
        stage.later(10)
        first.beat()
    stage.rescue()
    first.finishes()

    assert (stage.job(job).state, stage.job(job).attempt) == (JobState.SUCCEEDED, 1)


def test_failures_do_not_matter_once_the_first_node_has_finished(stage: Stage) -> None:
    job, (first, second) = running(stage)
    first.finishes()
    second.fails("crashed")

    assert stage.job(job).state is JobState.SUCCEEDED

    job, (first, second) = running(stage)
    stage.rescue()
    first.finishes()
    stage.later(stage.settings.lease_seconds + 1)
    stage.rescue()
    assert stage.job(job).state is JobState.SUCCEEDED


@pytest.mark.parametrize(("verb", "state"), [("pause", JobState.PAUSED), ("cancel", JobState.CANCELLED)])
def test_a_stop_reaches_every_node_and_the_job_stops_with_the_last(stage: Stage, verb: str, state: JobState) -> None:
    job, workers = running(stage, 3)
    getattr(stage, verb)(job)
    assert all((stop := worker.beat().stop) is not None and stop.because == verb for worker in workers)

    for worker in workers:
        assert stage.job(job).state is JobState.STOPPING
        worker.stops()

    assert stage.job(job).state is state


def test_a_drain_of_one_node_moves_its_job_and_drains_no_other_node(stage: Stage) -> None:
    job, (first, second) = running(stage)
    stage.beat_node(second.node, slots=1, draining=True)
    for worker in (first, second):
        assert (stop := worker.beat().stop) is not None
        assert stop.because == "drain"
    first.ends("stopped", "drain")
    second.ends("stopped", "drain", stop="drain")

    row = stage.job(job)
    assert (row.state, row.reason, row.failed_attempts) == (JobState.QUEUED, Reason.DRAINED, 0)
    stage.node(slots=1)
    assert stage.place() == [job]
    assert first.node in [part.node for part in stage.sources(job)]


def test_a_job_for_more_nodes_than_exist_waits_and_names_both_numbers(stage: Stage) -> None:
    stage.node(slots=1)
    stage.node(slots=1)
    job = stage.submit(nodes=3)

    assert stage.place() == []

    row = stage.job(job)
    assert row.reason is Reason.NO_SUCH_SHAPE
    assert all(count in (row.message or "") for count in ("3 nodes", "only 2"))


def test_a_node_lost_before_its_claim_sends_the_job_back_to_the_queue_at_once(stage: Stage) -> None:
    stage.settings = ServiceSettings(retry_backoff_seconds=0, claim_seconds=300, lease_seconds=30)
    for _ in range(3):
        stage.node(slots=1)
    job = stage.submit(nodes=2)
    stage.place()
    first, lost_source = stage.claim(job, 0), stage.sources(job)[1]
    stage.rescue()
    stage.later(31)
    first.beat()
    stage.timers.renew(node_key(first.node, first.boot), 1, stage.clock)
    assert lost_source.node in stage.rescue().nodes_lost
    stage.rescue()

    row = stage.job(job)
    assert row.state is JobState.QUEUED
    assert (row.reason, row.failed_attempts) == (Reason.NOT_CLAIMED, 0)
    assert f"heartbeat from {lost_source.node[-6:]}" in (row.message or "")
    assert first.beat().superseded
