"""One node of a job on several nodes fails, freezes, is lost or never comes.

All parts begin or none, all end, and nothing of an attempt runs beside the next one.

Everything that decides about it is control's, so control is all that there is: its moves over real SQL, with time that
stands still. What real nodes make of it is told in tests/journey.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from footplate.contract.ids import JobId
from footplate.contract.lifecycle import JobState, Reason
from service.jobs.rescue import node_key
from service.settings import ServiceSettings
from service.store import attempts, checkpoints, migrate
from service.store.database import Database
from tests.conformance.acting import Stage, Worker
from tests.faults.off import turned_off


@pytest.fixture(scope="module")
def migrated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("gangs") / "footplate.db"
    migrate(f"sqlite:///{path}")
    return path


@pytest.fixture
def stage(migrated: Path, tmp_path: Path, protection_off: list[str]) -> Iterator[Stage]:
    path = shutil.copy(migrated, tmp_path / "footplate.db")
    with ExitStack() as stack:
        database = Database(f"sqlite:///{path}", readers=2, writers=1)
        stack.callback(database.close)
        for name in protection_off:
            stack.enter_context(turned_off(name))
        yield Stage(database)


def running(stage: Stage, nodes: int = 2) -> tuple[JobId, list[Worker]]:
    for _ in range(nodes):
        stage.node(slots=1)
    job = stage.submit(nodes=nodes)
    assert stage.place() == [job]
    workers = [stage.claim(job, source) for source in range(nodes)]
    for worker in workers:
        worker.says_running()
    return job, workers


def held(stage: Stage) -> list[str]:
    return [part.node for part in stage.read(attempts.open_sources)]


@pytest.mark.fault(23, without="all nodes of a job at once, or none", red="begins on 1 of its 2 nodes")
def test_two_jobs_that_could_each_hold_half_are_placed_one_after_the_other(stage: Stage) -> None:
    for _ in range(2):
        stage.node(slots=1)
    small = stage.submit()
    stage.place()
    first, second = stage.submit(nodes=2), stage.submit(nodes=2)
    stage.place()
    for job in (first, second):
        begun = len(stage.sources(job))
        assert begun in (0, 2), f"it begins on {begun} of its 2 nodes"
    stage.claim(small).finishes()

    assert stage.place() == [first]
    for worker in [stage.claim(first, source) for source in (0, 1)]:
        worker.finishes()
    assert stage.place() == [second]


@pytest.mark.fault(23, without="what waits for several nodes holds what it will get", red="starved")
def test_small_jobs_that_keep_coming_do_not_starve_one_on_several_nodes(stage: Stage) -> None:
    for _ in range(2):
        stage.node(slots=1)
    small = [stage.submit(), stage.submit()]
    stage.place()
    gang = stage.submit(nodes=2)
    for job in small:
        stage.submit()
        stage.claim(job).finishes()
        stage.place()

    assert stage.job(gang).state is JobState.STARTING, "both nodes came free, and it starved"


@pytest.mark.fault(23, without="nothing is held for who waits for a node without work", red="an empty slot")
def test_who_waits_for_a_node_that_takes_no_work_keeps_nobody_waiting(stage: Stage) -> None:
    stage.node(slots=1)
    stage.node(slots=1, consuming=False)
    gang = stage.submit(nodes=2)
    stage.place()
    small = stage.submit()

    assert stage.place() == [small], "it waits beside an empty slot"
    assert stage.job(gang).state is JobState.QUEUED


@pytest.mark.fault(23, without="ranks begin once every node has claimed", red="before the other has come")
@pytest.mark.fault(23, without="a claim has its time", red="for ever")
def test_a_node_that_never_claims_its_part_costs_the_others_some_seconds(stage: Stage) -> None:
    """The node is up, but does not receive its start message."""
    for _ in range(2):
        stage.node(slots=1)
    job = stage.submit(nodes=2)
    stage.place()
    first = stage.claim(job, 0)
    assert first.beat().rendezvous is None, "it begins before the other has come"
    stage.rescue()
    for _ in range(4):
        stage.later(stage.settings.claim_seconds / 3)
        first.beat()
        stage.rescue()

    row = stage.job(job)
    assert row.state is JobState.QUEUED, "it holds its nodes for ever"
    assert (row.reason, row.spent) == (Reason.NOT_CLAIMED, 0)
    assert first.beat().superseded
    assert held(stage) == []


@pytest.mark.fault(23, without="a claim has its time", red="waits for a node that is lost")
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
    stage.timers.heard(node_key(first.node, first.boot), 1, stage.clock)
    assert gone.node in stage.rescue().nodes_lost
    stage.rescue()

    row = stage.job(job)
    assert row.state is JobState.QUEUED, "it waits for a node that is lost"
    assert (row.reason, row.spent) == (Reason.NOT_CLAIMED, 0)
    assert row.message == f"attempt 1 was not claimed: no word from {gone.node[-6:]}"
    assert first.beat().superseded


@pytest.mark.fault(23, without="a part that fails ends the others", red="the other trains on")
@pytest.mark.fault(23, without="an attempt is over when its last part is", red="beside what is left of it")
def test_one_part_fails_and_all_end_before_the_job_is_tried_again(stage: Stage) -> None:
    job, (first, second) = running(stage)
    second.fails("crashed")
    assert stage.job(job).state is JobState.RUNNING, "the next attempt may begin beside what is left of it"
    stop = first.beat().stop
    assert stop is not None, "the other trains on"
    assert (stop.because, stop.mode) == ("peer", "kill")
    first.ends("stopped", "peer", stop="peer")

    row = stage.job(job)
    assert (row.state, row.reason, row.spent) == (JobState.QUEUED, Reason.RETRY, 1)
    assert held(stage) == []


@pytest.mark.fault(23, without="who only lost another is not the reason", red="peer_lost is told")
def test_the_reason_is_the_part_that_failed_by_itself_whoever_says_it_first(stage: Stage) -> None:
    job, (first, second) = running(stage)
    first.ends("failed", "crashed", another_s=True, error={"code": "peer_lost", "message": "Connection closed by peer"})
    second.fails("oom")

    report = json.loads(str(stage.job(job).error))["code"]
    assert report == "oom", f"{report} is told"


@pytest.mark.fault(23, without="a part that does not end with the others is given up", red="is stuck")
def test_a_part_that_does_not_end_with_the_others_is_given_up(stage: Stage) -> None:
    """The part's supervisor is alive, but does not follow the stop."""
    job, (first, second) = running(stage)
    second.fails("crashed")
    for _ in range(9):
        stage.rescue()
        stage.later(10)
        first.beat()
    stage.rescue()

    assert stage.job(job).state is JobState.QUEUED, "the job is stuck"
    assert first.beat().superseded


@pytest.mark.fault(23, without="the lease of an attempt", red="nobody misses it")
@pytest.mark.fault(23, without="the fence", red="the frozen part goes on")
@pytest.mark.fault(23, without="the fence of events", red="a checkpoint of the frozen part is taken")
def test_a_part_that_was_frozen_finds_that_the_job_has_moved_on(stage: Stage) -> None:
    """The first one: it is the one that saves."""
    job, (frozen, other) = running(stage)
    frozen.checkpoints(10)
    stage.rescue()
    stage.later(stage.settings.lease_seconds + 1)
    other.beat()
    stage.rescue()
    assert stage.job(job).state is JobState.QUEUED, "nobody misses it"
    for _ in range(2):
        stage.node(slots=1)
    assert stage.place() == [job]
    again = [stage.claim(job, source) for source in (0, 1)]
    for worker in again:
        worker.says_running()

    frozen.checkpoints(20)
    rows = stage.read(lambda conn: checkpoints.of_job(conn, job))
    assert [row.step for row in rows] == [10], "a checkpoint of the frozen part is taken"
    assert frozen.beat().superseded, "the frozen part goes on"
    assert other.beat().superseded
    frozen.finishes()

    assert stage.job(job).state is JobState.RUNNING
    assert not any(worker.beat().superseded for worker in again)
