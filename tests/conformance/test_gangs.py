"""A job on several nodes, as SQL and control know it: it begins everywhere or nowhere, and ends everywhere."""

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


def a_gang(stage: Stage, nodes: int = 2, **changes: object) -> JobId:
    """Placed, and claimed by nobody yet."""
    for _ in range(nodes):
        stage.node(slots=1)
    job = stage.submit(nodes=nodes, **changes)
    assert stage.place() == [job]
    return job


def running(stage: Stage, nodes: int = 2, **changes: object) -> tuple[JobId, list[Worker]]:
    job = a_gang(stage, nodes, **changes)
    workers = [stage.claim(job, source) for source in range(nodes)]
    for worker in workers:
        worker.says_running()
    return job, workers


def held(stage: Stage) -> list[str]:
    return [part.node for part in stage.read(attempts.open_sources)]


def test_the_last_claim_tells_the_others_at_once(stage: Stage) -> None:
    job = a_gang(stage)
    first = stage.claim(job, 0)
    part = stage.sources(job)[1]
    late = first.claim_message().model_copy(update={"claim": new_claim_id(), "node": part.node, "boot": part.boot})

    heard = stage.write(lambda conn: answer(conn, [late], stage.now, stage.settings, stage.stop_left))

    replies = [message for _, message in heard.replies if isinstance(message, AttemptReply)]
    assert [(reply.claim, reply.rendezvous) for reply in replies] == [(first.claim, FIRST)]


def test_a_job_on_one_node_meets_nobody(stage: Stage) -> None:
    _, worker = stage.running()

    assert isinstance(worker.answer, Grant)
    assert (worker.answer.nodes, worker.answer.rendezvous, worker.beat().rendezvous) == (1, None, None)


def test_a_cancel_before_all_have_claimed_ends_what_waits(stage: Stage) -> None:
    job = a_gang(stage)
    first = stage.claim(job, 0)
    stage.cancel(job)
    assert first.beat().stop is not None

    first.stops()

    assert stage.job(job).state is JobState.CANCELLED
    assert isinstance(stage.ask(job, 1).answer, Denial)


def test_who_follows_a_job_sees_it_run_once_when_all_of_it_does(stage: Stage) -> None:
    job, _ = running(stage)

    assert stage.states(job) == ["queued", "starting", "running"]
    assert any("running on node 1 of 2" in event.data for event in stage.events(job, ["note"]))


def test_a_node_that_is_lost_is_the_reason_and_not_what_the_others_made_of_it(stage: Stage) -> None:
    job, (first, second) = running(stage)
    first.checkpoints(10)
    stage.rescue()
    first.ends(
        "failed", "crashed", is_follow_up=True, error={"code": "peer_lost", "message": "Connection closed by peer"}
    )
    stage.later(stage.settings.lease_seconds + 1)

    stage.rescue()

    row = stage.job(job)
    assert (row.state, row.reason, row.spent) == (JobState.QUEUED, Reason.RETRY, 1)
    error = json.loads(str(row.error))
    assert error["code"] == "node_lost"
    assert f"no heartbeat from {second.node[-6:]}" in error["message"]
    again = stage.place()
    assert again == []
    stage.node(slots=1)
    stage.node(slots=1)
    assert stage.place() == [job]
    next_one = stage.claim(job, 0)
    assert isinstance(next_one.answer, Grant)
    assert [offer.step for offer in next_one.answer.checkpoints] == [10]


def test_a_known_failure_is_the_reason_though_another_node_is_lost_meanwhile(stage: Stage) -> None:
    job, (_, second) = running(stage)
    stage.rescue()
    second.fails("oom")
    stage.later(stage.settings.lease_seconds + 1)

    stage.rescue()

    assert (stage.job(job).state, stage.job(job).reason) == (JobState.FAILED, Reason.OOM)


def test_the_first_may_take_its_time_to_hand_in_what_all_have_finished(stage: Stage) -> None:
    job, (first, second) = running(stage)
    second.finishes()
    for _ in range(9):
        stage.rescue()
        stage.later(10)
        first.beat()
    stage.rescue()
    first.finishes()

    assert (stage.job(job).state, stage.job(job).attempt) == (JobState.SUCCEEDED, 1)


def test_once_the_first_has_finished_nothing_that_happens_to_the_others_matters(stage: Stage) -> None:
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
def test_a_stop_reaches_every_node_and_holds_once_all_have_stopped(stage: Stage, verb: str, state: JobState) -> None:
    job, workers = running(stage, 3)
    getattr(stage, verb)(job)
    assert all((stop := worker.beat().stop) is not None and stop.because == verb for worker in workers)

    for worker in workers:
        assert stage.job(job).state is JobState.STOPPING
        worker.stops()

    assert stage.job(job).state is state


def test_a_drain_of_one_node_moves_the_whole_job_and_closes_no_other_node(stage: Stage) -> None:
    job, (first, second) = running(stage)
    stage.beat_node(second.node, slots=1, draining=True)
    for worker in (first, second):
        assert (stop := worker.beat().stop) is not None
        assert stop.because == "drain"
    first.ends("stopped", "drain")
    second.ends("stopped", "drain", stop="drain")

    row = stage.job(job)
    assert (row.state, row.reason, row.spent) == (JobState.QUEUED, Reason.DRAINED, 0)
    stage.node(slots=1)
    assert stage.place() == [job]
    assert first.node in [part.node for part in stage.sources(job)]


def test_a_node_of_the_version_before_gets_no_part_of_a_job(stage: Stage) -> None:
    """A node of the older version would take the part for the whole job, and train alone."""
    stage.node(slots=1)
    stage.node(slots=1, protocol=1)
    gang, alone = stage.submit(nodes=2), stage.submit()

    assert stage.place() == [alone]
    assert stage.job(gang).reason is Reason.NO_SUCH_SHAPE


def test_a_job_for_more_nodes_than_there_are_says_so(stage: Stage) -> None:
    stage.node(slots=1)
    stage.node(slots=1)
    job = stage.submit(nodes=3)

    assert stage.place() == []

    row = stage.job(job)
    assert row.reason is Reason.NO_SUCH_SHAPE
    assert row.message == "waits for 3 nodes with 1 slot each in pool 'default': 2 that take work fit"


def test_a_node_that_is_lost_before_it_claims_costs_nobody_the_time_of_a_claim(stage: Stage) -> None:
    stage.settings = ServiceSettings(retry_backoff_seconds=0, claim_seconds=300, lease_seconds=30)
    for _ in range(3):
        stage.node(slots=1)
    job = stage.submit(nodes=2)
    stage.place()
    first, gone = stage.claim(job, 0), stage.sources(job)[1]
    stage.rescue()
    stage.later(31)
    first.beat()
    stage.timers.renew(node_key(first.node, first.boot), 1, stage.clock)
    assert gone.node in stage.rescue().nodes_lost
    stage.rescue()

    row = stage.job(job)
    assert row.state is JobState.QUEUED
    assert (row.reason, row.spent) == (Reason.NOT_CLAIMED, 0)
    assert row.message == f"attempt 1 was not claimed: no heartbeat from {gone.node[-6:]}"
    assert first.beat().superseded
