"""What seeds have found, each as the smallest story of it, on both databases."""

from __future__ import annotations

import json

from contract.lifecycle import JobState, Reason
from contract.messages import Grant
from service.settings import ServiceSettings
from tests.conformance.acting import Stage

HOUR_SECONDS = 3600


def test_a_retry_waits_no_longer_because_the_wall_clock_was_set_back(stage: Stage) -> None:
    stage.settings = ServiceSettings(retry_backoff_seconds=5)
    job, worker = stage.running(retry={"backoff": 5})
    worker.fails()
    assert stage.place() == []

    stage.now -= HOUR_SECONDS * 1000

    assert stage.place() == [job]


def test_an_attempt_that_beats_and_never_runs_is_closed_and_tried_again(stage: Stage) -> None:
    """Its supervisor hangs: training's own silence it would have noticed."""
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

    assert rescued.lost == 1
    row = stage.job(job)
    assert (row.state, row.reason, row.spent) == (JobState.QUEUED, Reason.RETRY, 1)
    assert json.loads(row.error or "")["code"] == "stalled"
    assert "did not say in time that it runs" in (row.error or "")
    assert worker.beat().superseded


def test_every_node_of_an_attempt_continues_from_the_same_place(stage: Stage) -> None:
    """The second one is granted after the first has saved something of its own."""
    for _ in range(2):
        stage.node(slots=1)
    job = stage.submit(nodes=2)
    stage.place()
    stage.claim(job, source=0).checkpoints(5)
    late = stage.claim(job, source=1)

    assert isinstance(late.answer, Grant)
    assert late.answer.checkpoints == []
