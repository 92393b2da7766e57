"""Tests a job that starts from a checkpoint of another job: the granted checkpoint, and what rotation keeps for it."""

from __future__ import annotations

import json

import pytest

from footplate.contract.ids import JobId
from footplate.contract.messages import Grant
from service.jobs.amend import delete
from service.jobs.resume import Resume
from service.jobs.start_checkpoint import CheckpointInUse
from service.store import checkpoints
from tests.conformance.acting import Stage, Worker
from tests.conformance.test_rotation import TWO, again, statuses


def offered(worker: Worker) -> list[tuple[int, JobId | None]]:
    """Returns the step of each granted checkpoint, and the job that it belongs to, or None for the worker's own job."""
    assert isinstance(worker.answer, Grant)
    return [(offer.step, offer.of) for offer in worker.answer.checkpoints]


def with_checkpoints(stage: Stage, *steps: int) -> Worker:
    _, worker = stage.running(training=TWO)
    for step in steps:
        worker.checkpoints(step)
    return worker


def delete_job(stage: Stage, job: JobId) -> None:
    stage.write(lambda conn: delete(conn, "default", job, stage.now))


def test_a_job_gets_the_source_jobs_checkpoint_until_it_has_its_own(stage: Stage) -> None:
    source_worker = with_checkpoints(stage, 5, 10)
    source_worker.finishes()
    other = source_worker.job
    job = stage.submit(training=TWO, resume_from={"job": other})
    stage.place()
    first = stage.claim(job)
    assert offered(first) == [(10, other)]
    first.says_running()

    second = again(stage, first)
    assert offered(second) == [(10, other)]
    second.says_running()
    second.checkpoints(15)

    assert offered(again(stage, second)) == [(15, None)]


def test_a_source_job_keeps_the_checkpoint_that_another_job_starts_from(stage: Stage) -> None:
    worker = with_checkpoints(stage, 5, 10, 15)
    pinned = {row.step: row.id for row in stage.read(lambda conn: checkpoints.of_job(conn, worker.job))}
    job = stage.submit(training=TWO, resume_from={"job": worker.job, "checkpoint": pinned[5]})
    stage.pause(job)

    after = again(stage, worker)
    after.says_running()
    after.checkpoints(20)
    assert statuses(stage, worker.job) == {
        "2/20": "committed",
        "1/15": "committed",
        "1/10": "deleting",
        "1/5": "committed",
    }

    stage.cancel(job)
    after.checkpoints(25)
    assert statuses(stage, worker.job)["1/5"] == "deleting"


def test_training_gets_the_list_of_its_checkpoints_that_others_start_from(stage: Stage) -> None:
    worker = with_checkpoints(stage, 5, 10)
    assert worker.beat().held_steps == []

    jobs = [stage.submit(training=TWO, resume_from={"job": worker.job}) for _ in range(2)]
    assert worker.beat().held_steps == [10]

    for job in jobs:
        stage.cancel(job)
    assert worker.beat().held_steps == []


def test_a_starting_checkpoint_is_kept_until_all_nodes_of_the_job_run(stage: Stage) -> None:
    other = with_checkpoints(stage, 5)
    for _ in range(2):
        stage.node(slots=1)
    job = stage.submit(nodes=2, training=TWO, resume_from={"job": other.job})
    stage.place()
    quick = stage.claim(job, source=0)
    quick.says_running()
    quick.checkpoints(10)

    assert other.beat().held_steps == [5]
    late = stage.claim(job, source=1)
    assert offered(late) == [(5, other.job)]
    late.says_running()
    assert other.beat().held_steps == []


@pytest.mark.own_statement
def test_a_job_is_not_deleted_while_another_job_starts_from_its_checkpoint(stage: Stage) -> None:
    worker = with_checkpoints(stage, 5)
    worker.finishes()
    job = stage.submit(training=TWO, resume_from={"job": worker.job})
    with pytest.raises(CheckpointInUse):
        delete_job(stage, worker.job)

    stage.cancel(job)
    delete_job(stage, worker.job)

    # The worker then reports the missing checkpoint, because no job may silently start at step 0.
    stage.resume(job)
    stage.place()
    assert offered(stage.claim(job)) == []


def test_a_resume_with_changes_keeps_the_source_checkpoint_and_the_bundle(stage: Stage) -> None:
    worker = with_checkpoints(stage, 5)
    job = stage.submit(training=TWO, resume_from={"job": worker.job})
    before = stage.job(job)
    stage.pause(job)

    after = stage.resume(job, Resume(max_steps=77))

    assert json.loads(after.spec)["resume_from"] == json.loads(before.spec)["resume_from"]
    assert after.starts_from == before.starts_from is not None
    assert f'"checkpoint":"{after.starts_from}"' in after.spec, "a text search must find the id"
