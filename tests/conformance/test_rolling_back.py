"""Tests a resume from an older checkpoint, after which later steps of the job are as if never run."""

from __future__ import annotations

import json

import pytest

from footplate.contract.errors import Conflict, FootplateError, InvalidSpec
from footplate.contract.events import Kind
from footplate.contract.ids import CheckpointId, JobId, new_checkpoint_id
from footplate.contract.lifecycle import JobState
from footplate.contract.messages import Grant
from service.jobs.checkpoints import drop, pin
from service.jobs.resume import Resume
from service.store import checkpoints, commands
from tests.conformance.acting import Stage, Worker
from tests.conformance.test_live_commands import ask, does
from tests.conformance.test_rotation import statuses


def paused(stage: Stage, *steps: int, best: int = 0) -> tuple[JobId, dict[int, CheckpointId], Worker]:
    """Returns a paused job, its checkpoints by their steps, and the worker that saved them."""
    job, worker = stage.running()
    for step in steps:
        worker.checkpoints(step, is_best=step <= best)
    stop(stage, worker)
    rows = stage.read(lambda conn: checkpoints.of_job(conn, job))
    return job, {row.step: row.id for row in rows}, worker


def stop(stage: Stage, worker: Worker) -> None:
    stage.pause(worker.job)
    worker.ends("stopped", "pause", stop="pause")


def test_a_resume_from_an_older_checkpoint_offers_no_newer_checkpoint(stage: Stage) -> None:
    job, ids, _ = paused(stage, 5, 10, 15)

    row = stage.resume(job, Resume(checkpoint=ids[5]))

    assert (row.state, statuses(stage, job)) == (
        JobState.QUEUED,
        {"1/15": "deleting", "1/10": "deleting", "1/5": "committed"},
    )
    assert ids[5] in json.loads(stage.events(job, ["state"])[-1].data)["message"]
    stage.place()
    again = stage.claim(job)
    assert isinstance(again.answer, Grant)
    assert [offer.id for offer in again.answer.checkpoints] == [ids[5]]


@pytest.mark.own_statement
def test_a_resume_from_an_older_checkpoint_discards_later_commands_and_progress(stage: Stage) -> None:
    job, worker = stage.running()
    worker.send(worker.write(Kind.PROGRESS, {"step": 5, "max_steps": 40, "epoch": 0.5}, 5))
    early = ask(stage, job, set={"learning_rate": 0.5})
    does(worker, early, 5, set={"learning_rate": {"from": 1.0, "to": 0.5}})
    worker.checkpoints(5, is_best=True)
    late = ask(stage, job, set={"learning_rate": 9.0})
    does(worker, late, 7, set={"learning_rate": {"from": 0.5, "to": 9.0}})
    waiting = ask(stage, job, save=True)
    worker.send(worker.write(Kind.PROGRESS, {"step": 10, "max_steps": 40, "epoch": 1.0}, 10))
    worker.checkpoints(10, is_best=True)
    stop(stage, worker)

    stage.resume(job, Resume(checkpoint=named(stage, job, 5)))

    rows = checkpoints.committed(stage.read(lambda conn: checkpoints.of_job(conn, job)))
    assert [(row.step, row.is_best) for row in rows] == [(5, True)]
    assert [command.no for command in stage.read(lambda conn: commands.of_job(conn, job))] == [early, waiting]
    assert json.loads(stage.job(job).progress or "")["step"] == 5


def named(stage: Stage, job: JobId, step: int) -> CheckpointId:
    return next(row.id for row in stage.read(lambda conn: checkpoints.of_job(conn, job)) if row.step == step)


def test_a_resume_from_the_best_checkpoint_may_lower_max_steps_down_to_it(stage: Stage) -> None:
    job, _, _ = paused(stage, 5, 10, 15, best=10)
    with pytest.raises(InvalidSpec) as error:
        stage.resume(job, Resume(checkpoint="best", max_steps=9))
    assert error.value.problems[0].pointer == "/max_steps"

    stage.resume(job, Resume(checkpoint="best", max_steps=12))

    assert statuses(stage, job) == {"1/15": "deleting", "1/10": "committed", "1/5": "committed"}


def test_a_resume_that_would_delete_a_checkpoint_in_use_is_refused(stage: Stage) -> None:
    job, ids, _ = paused(stage, 5, 10, 15)
    other = stage.submit(resume_from={"job": job, "checkpoint": ids[15]})
    before = stage.job(job)

    with pytest.raises(FootplateError) as in_use:
        stage.resume(job, Resume(checkpoint=ids[10]))
    assert (in_use.value.code, other in in_use.value.message) == ("checkpoint_in_use", True)
    stage.write(lambda conn: pin(conn, "default", job, ids[10], "jobs/pinned", lambda: True, stage.now))
    with pytest.raises(FootplateError) as pinned:
        stage.resume(job, Resume(checkpoint=ids[5]))
    assert (pinned.value.code, ids[10] in pinned.value.message) == ("checkpoint_pinned", True)

    assert "deleting" not in statuses(stage, job).values()
    assert stage.job(job).state is before.state


def test_a_pinned_checkpoint_can_be_resumed_from(stage: Stage) -> None:
    job, ids, _ = paused(stage, 5, 10)
    stage.write(lambda conn: pin(conn, "default", job, ids[5], "jobs/pinned", lambda: True, stage.now))

    stage.resume(job, Resume(checkpoint=ids[5]))

    assert statuses(stage, job) == {"1/10": "deleting", "1/5": "committed"}


def test_a_checkpoint_that_the_job_does_not_have_is_refused_with_a_pointer(stage: Stage) -> None:
    _, others, _ = paused(stage, 5)
    job, ids, _ = paused(stage, 5, 10, 15)
    stage.write(lambda conn: drop(conn, "default", job, ids[10], stage.now))

    def refusal(checkpoint: str) -> tuple[str, str]:
        with pytest.raises(InvalidSpec) as error:
            stage.resume(job, Resume(checkpoint=checkpoint))
        return error.value.problems[0].pointer, error.value.problems[0].code

    assert refusal(new_checkpoint_id()) == refusal(others[5]) == ("/checkpoint", "unknown_checkpoint")
    assert refusal(ids[10]) == ("/checkpoint", "checkpoint_gone")
    assert refusal("best") == ("/checkpoint", "no_checkpoint")
    assert stage.job(job).state is JobState.PAUSED


def test_a_queued_or_active_job_accepts_no_resume_from_another_checkpoint(stage: Stage) -> None:
    job, ids, _ = paused(stage, 5, 10, 15)
    stage.resume(job, Resume(checkpoint=ids[10]))

    report = stage.resume(job, Resume(checkpoint=ids[10]))
    assert report == stage.job(job)
    with pytest.raises(Conflict):
        stage.resume(job, Resume(checkpoint=ids[5]))
    with pytest.raises(InvalidSpec):
        stage.resume(job, Resume(checkpoint=ids[15]))
    stage.place()
    worker = stage.claim(job)
    worker.says_running()
    with pytest.raises(Conflict) as running:
        stage.resume(job, Resume(checkpoint=ids[5]))
    assert running.value.state == "running"
    stage.pause(job)
    with pytest.raises(Conflict) as stopping:
        stage.resume(job, Resume(checkpoint=ids[5]))
    assert stopping.value.state == "stopping"
    assert statuses(stage, job) == {"1/15": "deleting", "1/10": "committed", "1/5": "committed"}


def test_a_succeeded_job_is_not_resumed_from_an_older_checkpoint(stage: Stage) -> None:
    job, worker = stage.running()
    worker.checkpoints(5)
    worker.checkpoints(10)
    worker.finishes()

    with pytest.raises(Conflict) as error:
        stage.resume(job, Resume(checkpoint=named(stage, job, 5)))

    assert "fork" in (error.value.hint or "")
