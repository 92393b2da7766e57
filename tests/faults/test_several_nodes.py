"""Tests a job on several nodes of which one fails, never claims, or does not end. All nodes start and end together.

Only control decides about this, so no process is started. tests/conformance/test_several_nodes.py has more cases, and
tests/journey has real nodes.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from footplate.contract.lifecycle import JobState, Reason
from footplate.contract.messages import Grant
from service.store.database import Database
from tests.conformance.acting import Stage
from tests.conformance.test_several_nodes import FIRST, held, placed_job, running
from tests.faults.off import turned_off
from tests.support.system import bring_to_schema


@pytest.fixture
def stage(sqlite_url: str, protection_off: list[str]) -> Iterator[Stage]:
    bring_to_schema(sqlite_url)
    with ExitStack() as stack:
        database = Database(sqlite_url, readers=1, writers=1)
        stack.callback(database.close)
        for name in protection_off:
            stack.enter_context(turned_off(name))
        yield Stage(database)


@pytest.mark.fault(23, without="ranks begin once every node has claimed", red="before the other nodes have claimed")
def test_no_node_gets_the_rendezvous_before_the_last_claim(stage: Stage) -> None:
    job = placed_job(stage, 3)
    second, first = stage.claim(job, 1), stage.claim(job, 0)
    early = [part.answer.rendezvous for part in (second, first)]  # type: ignore[union-attr]
    assert [*early, second.beat().rendezvous] == [None] * 3, "ranks meet before the other nodes have claimed"

    last = stage.claim(job, 2)

    assert isinstance(last.answer, Grant)
    assert (last.answer.source, last.answer.nodes, last.answer.rendezvous) == (2, 3, FIRST)
    assert [part.beat().rendezvous for part in (first, second)] == [FIRST, FIRST]
    # The node sends its claim again, because the answer was lost.
    assert second.ask_again().rendezvous == FIRST  # type: ignore[union-attr]


@pytest.mark.fault(23, without="a claim has a deadline", red="it holds its nodes")
def test_a_job_that_a_node_never_claims_returns_to_the_queue(stage: Stage) -> None:
    """The node is up, but does not receive its start message."""
    for _ in range(2):
        stage.node(slots=1)
    job = stage.submit(nodes=2)
    stage.place()
    first = stage.claim(job, 0)
    assert first.beat().rendezvous is None
    stage.rescue()
    for _ in range(4):
        stage.later(stage.settings.claim_seconds / 3)
        first.beat()
        stage.rescue()

    row = stage.job(job)
    assert row.state is JobState.QUEUED, "it holds its nodes for ever"
    assert (row.reason, row.failed_attempts) == (Reason.NOT_CLAIMED, 0)
    assert first.beat().superseded
    assert held(stage) == []


@pytest.mark.fault(23, without="a failed node ends the others", red="the other part trains on")
def test_a_failure_on_one_node_ends_all_nodes_before_the_next_attempt(stage: Stage) -> None:
    job, (first, second) = running(stage)
    second.fails("crashed")
    assert stage.job(job).state is JobState.RUNNING
    stop = first.beat().stop
    assert stop is not None, "the other part trains on"
    assert (stop.because, stop.mode) == ("peer", "kill")
    first.ends("stopped", "peer", stop="peer")

    row = stage.job(job)
    assert (row.state, row.reason, row.failed_attempts) == (JobState.QUEUED, Reason.RETRY, 1)
    assert held(stage) == []


@pytest.mark.fault(
    23, without="a node that lost another node is not the reason", red="the job says that it failed of peer_lost"
)
def test_the_node_that_failed_by_itself_is_the_reason_even_if_it_reports_later(stage: Stage) -> None:
    job, (first, second) = running(stage)
    first.ends(
        "failed", "crashed", is_follow_up=True, error={"code": "peer_lost", "message": "Connection closed by peer"}
    )
    second.fails("oom")

    code = json.loads(str(stage.job(job).error))["code"]
    assert code == "oom", f"the job says that it failed of {code}"


@pytest.mark.fault(23, without="a node that does not end has a deadline", red="the job is stuck")
def test_a_job_does_not_wait_for_ever_for_a_node_that_ignores_its_stop(stage: Stage) -> None:
    """The supervisor on one node is alive, but does not follow the stop."""
    job, (first, second) = running(stage)
    second.fails("crashed")
    for _ in range(9):
        stage.rescue()
        stage.later(10)
        first.beat()
    stage.rescue()

    assert stage.job(job).state is JobState.QUEUED, "the job is stuck"
    assert first.beat().superseded
