"""Tests which rows one turn of placement reads and writes, on both databases."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from typing import Any

from sqlalchemy import Connection, text

from footplate.contract.ids import JobId, new_job_id
from footplate.contract.lifecycle import JobState, Reason
from service.jobs import waiting
from service.jobs.place import plan_queue, start
from service.jobs.placement import Placement
from service.jobs.resume import Resume
from service.jobs.submit import Submission
from service.store import jobs, nodes, queue
from tests.conformance.acting import Stage, place_waiting
from tests.support.factories import make_spec
from tests.support.many_jobs import copy_job

FEW, MANY = 100, 10_000
Do = Callable[[Connection], object]


def work(conn: Connection, do: Do) -> int:
    """Returns the work of the database: the number of SQLite's instructions, or of the rows that PostgreSQL scanned."""
    if conn.dialect.name == "sqlite":
        driver: Any = conn.connection.driver_connection
        ticks: list[None] = []
        driver.set_progress_handler(lambda: ticks.append(None), 10)
        try:
            do(conn)
        finally:
            driver.set_progress_handler(None, 0)
        return 10 * len(ticks)
    rows = text(
        "SELECT sum(pg_stat_get_xact_tuples_returned(oid)) FROM pg_class WHERE relnamespace = 'public'::regnamespace"
    )
    before = conn.execute(rows).scalar_one()
    do(conn)
    return int(conn.execute(rows).scalar_one() - before)


def costs(stage: Stage, job: JobId) -> dict[str, int]:
    spec = make_spec()
    spec_json = json.dumps(spec.as_json())

    def post(conn: Connection) -> None:
        Submission(project="default", spec=spec, spec_json=spec_json, now=stage.now, job_id=new_job_id())(conn)

    urgent = stage.submit(priority=9)

    def turn(conn: Connection) -> None:
        assert place_waiting(conn, stage.now) == [urgent]

    reads: dict[str, Do] = {
        "a plan": plan_queue,
        "whether a job is due": lambda conn: queue.has_due(conn, stage.now),
        "a job": lambda conn: jobs.get(conn, "default", job),
        "a page of the queue": lambda conn: waiting.page(conn, None, None, limit=50),
    }
    result = {name: stage.read(lambda conn, do=do: work(conn, do)) for name, do in reads.items()}  # type: ignore[misc]
    result["a POST"] = stage.write(lambda conn: work(conn, post))
    stage.node(slots=1)
    result["a turn that starts a job"] = stage.write(lambda conn: work(conn, turn))
    return result


def test_placement_and_posts_read_no_more_rows_for_a_longer_queue(stage: Stage) -> None:
    possible, impossible = stage.submit(priority=3), stage.submit(resources={"pool": "nowhere"}, priority=9)
    copy_count, result = 0, []
    for count in (FEW, MANY):
        stage.write(partial(copy_job, job=possible, first=copy_count + 1, last=count))
        stage.write(partial(copy_job, job=impossible, first=MANY + copy_count + 1, last=MANY + count))
        stage.write(lambda conn: conn.execute(text("ANALYZE")))
        stage.place()
        result.append(costs(stage, possible))
        copy_count = count

    assert stage.read(jobs.waiting_counts) == {"capacity": MANY + 3, "no_such_shape": MANY + 1}
    few, many = result
    assert {name: cost for name, cost in many.items() if cost > 1.5 * few[name] + FEW} == {}


def test_finding_unclaimed_attempts_reads_no_more_rows_for_a_longer_queue(stage: Stage) -> None:
    """SQLite scanned all jobs four times per second if its statistics were older than the first attempt."""
    job = stage.submit(resources={"pool": "nowhere"})
    copy_count, result = 0, []
    for count in (FEW, MANY):
        stage.write(partial(copy_job, job=job, first=copy_count + 1, last=count))
        stage.write(lambda conn: conn.execute(text("ANALYZE")))
        # `write` uses the connection that ran ANALYZE, because SQLite's other connections keep their old statistics.
        result.append(stage.write(lambda conn: work(conn, queue.unclaimed)))
        copy_count = count

    assert result[1] <= result[0] + FEW


def test_a_changed_wait_reason_is_written_once_for_all_jobs_of_a_shape(stage: Stage) -> None:
    job = stage.submit()
    stage.write(lambda conn: copy_job(conn, job, 1, FEW))
    stage.place()
    copies = [row.id for row, _ in _page(stage)]
    assert {stage.job(copy).reason for copy in copies} == {Reason.NO_SUCH_SHAPE}
    versions = {stage.job(copy).version for copy in copies}

    stage.node(slots=1, store_ok=False)
    result = stage.read(plan_queue)
    stage.place()

    assert len(result.new_waits) == 1
    assert {stage.job(copy).reason for copy in copies} == {Reason.CAPACITY}
    assert {row.reason for _, row in _page(stage)} == {Reason.CAPACITY}
    assert stage.read(jobs.waiting_counts) == {"capacity": FEW + 1}
    assert {stage.job(copy).version for copy in copies} == versions
    assert not stage.read(plan_queue).new_waits


def _page(stage: Stage) -> list[Any]:
    return stage.read(lambda conn: waiting.page(conn, None, None, limit=2 * FEW)).data


def test_a_wait_reason_is_deleted_with_the_last_job_of_its_shape(stage: Stage) -> None:
    job = stage.submit()
    stage.place()
    stage.cancel(job)
    stage.place()

    assert stage.job(stage.submit()).reason is Reason.SUBMITTED


def planned(stage: Stage, slots: int = 1) -> list[Placement]:
    stage.node(slots=slots)
    return stage.read(plan_queue).placements


def started_ids(stage: Stage, placements: list[Placement]) -> list[JobId]:
    return stage.write(lambda conn: start(conn, placements, stage.now))


def test_a_job_that_has_changed_since_the_plan_is_not_started(stage: Stage) -> None:
    job = stage.submit()
    placements = planned(stage)
    stage.pause(job)
    assert started_ids(stage, placements) == []
    stage.resume(job, Resume(pool="elsewhere"))

    assert started_ids(stage, placements) == []

    assert (stage.job(job).state, stage.job(job).attempt) == (JobState.QUEUED, 0)


def test_a_node_that_has_changed_since_the_plan_gets_no_job(stage: Stage) -> None:
    job = stage.submit()
    (placement,) = planned(stage)
    node = placement.shares[0].node
    stage.beat_node(node, slots=1, store_ok=False)
    assert started_ids(stage, [placement]) == []
    stage.beat_node(node, boot="boot-2", slots=1)

    assert started_ids(stage, [placement]) == []

    assert stage.place() == [job]


def test_slots_that_two_plans_assign_go_to_one_job(stage: Stage) -> None:
    first = stage.submit()
    (placement,) = planned(stage)
    second = stage.submit(priority=9)
    (urgent,) = stage.read(plan_queue).placements
    assert (placement.job_id, urgent.job_id) == (first, second)

    assert started_ids(stage, [urgent, placement]) == [second]


def test_placement_is_planned_again_only_after_the_queue_or_a_node_has_changed(stage: Stage) -> None:
    stage.node(slots=1)
    job = stage.submit()
    assert stage.place() == [job]
    low = stage.submit()
    planned_state = stage.read(plan_queue).queue_state

    def is_new() -> bool:
        return stage.read(lambda conn: plan_queue(conn, unless=planned_state)).is_new

    stage.submit()
    assert not is_new(), "it waits behind another of its shape, which cannot start"
    urgent = stage.submit(priority=9)
    assert is_new()
    stage.cancel(urgent)
    assert not is_new()
    stage.submit(resources={"pool": "another"})
    assert is_new()
    planned_state = stage.read(plan_queue).queue_state
    stage.cancel(job)
    assert is_new(), "its slot is free"
    planned_state = stage.read(plan_queue).queue_state
    node = stage.read(nodes.all_nodes)[0].id
    stage.write(lambda conn: nodes.request_drain(conn, node, drain=True))
    assert is_new()
    stage.write(lambda conn: nodes.request_drain(conn, node, drain=False))
    assert not is_new()
    stage.cancel(low)
    assert is_new()


def test_jobs_of_one_shape_are_read_in_the_order_of_the_queue(stage: Stage) -> None:
    job = stage.submit()
    stage.write(lambda conn: copy_job(conn, job, 1, 3 * FEW, priority="n % 7 - 3", queued_at="queued_at - n / 2"))

    def read(conn: Connection) -> list[Any]:
        (head,) = queue.heads(conn)
        return list(queue.line(conn, head))

    rows = stage.read(read)

    assert len(rows) == 3 * FEW + 1
    assert rows == sorted(rows, key=lambda row: row.position)
    assert [row.id for row in rows] == [
        place.id for place, _ in stage.read(lambda c: waiting.page(c, None, None, 999)).data
    ]
