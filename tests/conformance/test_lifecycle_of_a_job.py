"""Tests the states of a job and their changes, as API.md lists them, on both databases."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from footplate.contract.errors import Conflict, InvalidSpec, NotFound
from footplate.contract.layout import outputs_folder
from footplate.contract.lifecycle import Desired, JobState, Reason, StopMode
from footplate.contract.messages import Denial, Grant
from service.jobs.conclude import Effects
from service.jobs.rescue import node_key
from service.jobs.resume import Resume
from service.store import attempts, checkpoints
from tests.conformance.acting import SETTINGS, Stage


def test_a_job_goes_from_submit_to_succeeded(stage: Stage) -> None:
    job, worker = stage.running()
    worker.logs(1, loss=2.0)
    worker.checkpoints(1)
    worker.logs(2, loss=1.5, lr=0.1)
    effects = worker.finishes()

    row = stage.job(job)
    assert (row.state, row.reason, row.attempt) == (JobState.SUCCEEDED, Reason.COMPLETED, 1)
    assert stage.states(job) == ["queued", "starting", "running", "succeeded"]
    assert [event.no for event in stage.events(job)] == list(range(1, row.last_no + 1))
    assert json.loads(row.metrics or "") == {"loss": 1.5, "lr": 0.1}
    assert row.running_ms == 1000
    assert row.finished_at == stage.now
    assert effects.replies[worker.claim].closed


def test_only_the_first_claim_is_granted(stage: Stage) -> None:
    stage.node()
    job = stage.submit()
    stage.place()
    first = stage.claim(job)

    second = stage.ask(job)

    assert isinstance(second.answer, Denial)
    assert isinstance(first.ask_again(), Grant)


def test_a_claim_that_comes_after_a_cancel_is_denied(stage: Stage) -> None:
    stage.node()
    job = stage.submit()
    stage.place()
    stage.cancel(job)

    assert isinstance(stage.ask(job).answer, Denial)
    assert stage.states(job) == ["queued", "starting", "cancelled"]


@pytest.mark.parametrize(("verb", "state"), [("cancel", JobState.CANCELLED), ("pause", JobState.PAUSED)])
def test_an_unclaimed_job_stops_at_once_and_frees_its_slots(stage: Stage, verb: str, state: JobState) -> None:
    stage.node(slots=1)
    job = stage.submit()
    stage.place()

    assert getattr(stage, verb)(job).state is state
    assert stage.place() == []
    other = stage.submit()
    assert stage.place() == [other]


def test_a_running_job_stops_first_and_then_is_cancelled(stage: Stage) -> None:
    job, worker = stage.running()

    row = stage.cancel(job)
    reply = worker.beat()
    worker.stops()

    assert (row.state, row.desired) == (JobState.STOPPING, Desired.CANCEL)
    assert reply.stop is not None
    assert (reply.stop.because, reply.stop.mode) == ("cancel", StopMode.CHECKPOINT)
    assert stage.states(job) == ["queued", "starting", "running", "stopping", "cancelled"]


def test_pause_and_resume_continue_from_the_newest_checkpoint_first(stage: Stage) -> None:
    job, worker = stage.running()
    worker.checkpoints(5)
    worker.checkpoints(9)
    stage.pause(job)
    worker.ends("stopped", "pause", stop="pause")
    assert stage.job(job).state is JobState.PAUSED

    assert stage.resume(job).state is JobState.QUEUED
    stage.place()
    again = stage.claim(job)

    assert isinstance(again.answer, Grant)
    assert [offer.step for offer in again.answer.checkpoints] == [9, 5]
    assert again.answer.attempt == 2


@pytest.mark.own_statement
@pytest.mark.parametrize("ending", [("stopped", "pause"), ("lost", "node_lost")])
def test_a_resume_during_a_pause_queues_the_job_once_it_has_stopped(stage: Stage, ending: tuple[str, str]) -> None:
    job, worker = stage.running()
    stage.rescue()  # starts control's timer of the attempt
    stage.pause(job)

    report = stage.resume(job, Resume(priority=9))
    assert stage.resume(job, Resume(priority=9)) == stage.resume(job) == report
    assert (report.state, report.desired, report.reason) == (JobState.STOPPING, Desired.RUN, Reason.RESUMED)
    assert worker.beat().stop is not None
    if ending[0] == "stopped":
        worker.ends(*ending, stop="pause")
    else:
        stage.later(SETTINGS.lease_seconds + 1)
        stage.rescue()

    row = stage.job(job)
    assert (row.state, row.reason, row.priority, row.failed_attempts) == (JobState.QUEUED, Reason.RESUMED, 9, 0)
    assert stage.states(job) == ["queued", "starting", "running", "stopping", "stopping", "queued"]


@pytest.mark.own_statement
def test_a_pause_after_a_resume_of_a_stopping_job_applies(stage: Stage) -> None:
    job, worker = stage.running()
    stage.pause(job)
    stage.resume(job)

    paused = stage.pause(job)
    assert (paused.desired, paused.message) == (Desired.PAUSE, None), "the outdated message of the resume remains"
    worker.ends("stopped", "pause", stop="pause")

    assert stage.job(job).state is JobState.PAUSED


def test_a_job_that_was_stopped_while_starting_is_never_reported_as_running(stage: Stage) -> None:
    stage.node()
    job = stage.submit()
    stage.place()
    worker = stage.claim(job)
    stage.pause(job)
    worker.says_running()
    worker.ends("stopped", "pause", stop="pause")

    assert stage.states(job) == ["queued", "starting", "stopping", "paused"]


def test_a_cancel_may_become_harder_but_not_softer(stage: Stage) -> None:
    job, worker = stage.running()
    stage.cancel(job)
    stage.cancel(job, StopMode.KILL)
    stage.cancel(job, StopMode.GRACEFUL)

    reply = worker.beat()

    assert reply.stop is not None
    assert (reply.stop.mode, reply.stop.within_seconds) == (StopMode.KILL, 0)


def test_a_job_that_finishes_before_its_pause_has_succeeded(stage: Stage) -> None:
    job, worker = stage.running()
    stage.pause(job)
    worker.finishes()

    row = stage.job(job)
    assert (row.state, row.desired) == (JobState.SUCCEEDED, Desired.RUN)


@pytest.mark.own_statement
def test_a_job_that_finishes_before_its_cancel_keeps_its_outputs(stage: Stage) -> None:
    job, worker = stage.running()
    stage.cancel(job)
    outputs = str(outputs_folder(job, 1))
    worker.ends("finished", outputs=outputs, result={"final": {"loss": 1}})

    row = stage.job(job)
    assert (row.state, row.reason, row.outputs) == (JobState.CANCELLED, Reason.FINISHED_FIRST, outputs)


@pytest.mark.parametrize("outputs", ["/etc", "../../etc", "jobs/other/attempts/1/outputs"])
def test_outputs_outside_the_folder_of_the_attempt_are_refused(stage: Stage, outputs: str) -> None:
    job, worker = stage.running()

    effects = worker.ends("finished", outputs=outputs)

    assert (stage.job(job).state, stage.job(job).outputs, effects.counts.events_dead) == (JobState.SUCCEEDED, None, 1)


def test_a_crash_is_retried_until_max_attempts(stage: Stage) -> None:
    job, worker = stage.running(retry={"max_attempts": 2})
    worker.fails("crashed")
    row = stage.job(job)
    assert (row.state, row.reason, row.failed_attempts) == (JobState.QUEUED, Reason.RETRY, 1)

    stage.place()
    stage.claim(job).fails("crashed")

    row = stage.job(job)
    assert (row.state, row.reason) == (JobState.FAILED, Reason.CRASHED)
    assert json.loads(row.error or "")["message"] == "it crashed"


def test_the_error_of_an_attempt_is_shown_until_the_next_attempt_runs(stage: Stage) -> None:
    job, worker = stage.running()
    worker.fails("crashed")
    assert json.loads(stage.job(job).error or "")["message"] == "it crashed"

    stage.place()
    stage.claim(job).says_running()

    assert stage.job(job).error is None
    first = stage.read(lambda conn: attempts.get(conn, job, 1))
    assert first is not None
    assert json.loads(first.error or "")["message"] == "it crashed"


def test_a_retry_waits_for_its_backoff(stage: Stage) -> None:
    job, worker = stage.running(retry={"backoff": 60})
    worker.fails("crashed")

    stage.later(59)
    assert stage.place() == []
    stage.later(2)
    assert stage.place() == [job]


def test_the_backoff_grows_only_while_attempts_make_no_progress(stage: Stage) -> None:
    job, worker = stage.running(retry={"backoff": 60, "max_attempts": 100})
    waits = []
    for step in (0, 0, 1, 2, 3, 4, 5, 6):
        if step:
            worker.checkpoints(step)
        worker.fails("crashed")
        waits.append(((stage.job(job).not_before or 0) - stage.now) / 1000)
        stage.later(121)
        stage.place()
        worker = stage.claim(job)
        worker.says_running()

    assert waits == [60, 120, 60, 60, 60, 60, 60, 60]


def test_an_error_in_users_code_is_not_retried(stage: Stage) -> None:
    job, worker = stage.running()
    worker.fails("error")

    row = stage.job(job)
    assert (row.state, row.reason) == (JobState.FAILED, Reason.ERROR)


def test_a_resumed_failed_job_has_all_its_attempts_again(stage: Stage) -> None:
    job, worker = stage.running(retry={"max_attempts": 1})
    worker.fails("crashed")

    row = stage.resume(job, Resume(priority=9, max_steps=77))

    assert (row.state, row.failed_attempts, row.priority) == (JobState.QUEUED, 0, 9)
    stage.place()
    answer = stage.claim(job).answer
    assert isinstance(answer, Grant)
    assert answer.spec["training"]["max_steps"] == 77


def test_a_repeated_resume_is_accepted_unless_its_changes_differ(stage: Stage) -> None:
    job, worker = stage.running()
    stage.pause(job)
    worker.ends("stopped", "pause", stop="pause")
    wish = Resume(priority=9, max_steps=77, resources={"time_limit": "4h"})

    first = stage.resume(job, wish)

    assert stage.resume(job, wish) == stage.resume(job) == first
    with pytest.raises(Conflict, match="priority, max_steps"):
        stage.resume(job, Resume(priority=9, max_steps=78))
    with pytest.raises(InvalidSpec):
        stage.resume(job, Resume(resources={"time_limit": "4 moons"}))
    assert stage.job(job) == first


def test_a_resume_cannot_set_max_steps_below_the_reached_step(stage: Stage) -> None:
    job, worker = stage.running()
    worker.checkpoints(9)
    stage.pause(job)
    worker.ends("stopped", "pause", stop="pause")

    with pytest.raises(InvalidSpec, match=r"/max_steps: .*step 9"):
        stage.resume(job, Resume(max_steps=8))

    assert stage.job(job).state is JobState.PAUSED
    assert stage.resume(job, Resume(max_steps=9)).state is JobState.QUEUED


def test_a_succeeded_job_cannot_be_resumed_and_the_answer_names_fork(stage: Stage) -> None:
    job, worker = stage.running()
    worker.finishes()

    with pytest.raises(Conflict) as error:
        stage.resume(job)

    assert "fork" in (error.value.hint or "")
    assert error.value.allowed == ["fork", "delete"]


def test_actions_on_a_job_of_another_project_raise_not_found(stage: Stage) -> None:
    job = stage.submit(project="theirs")

    for verb in (stage.cancel, stage.pause, stage.resume, stage.job):
        with pytest.raises(NotFound):
            verb(job)


def test_a_silent_attempt_is_lost_and_its_job_continues_elsewhere(stage: Stage) -> None:
    job, worker = stage.running()
    worker.logs(1)
    stage.rescue()
    stage.later(SETTINGS.lease_seconds - 1)
    assert stage.rescue().counts.attempts_lost == 0
    worker.beat()
    stage.later(SETTINGS.lease_seconds - 1)
    assert stage.rescue().counts.attempts_lost == 0
    stage.later(2)

    assert stage.rescue().counts.attempts_lost == 1

    row = stage.job(job)
    assert (row.state, row.reason, row.failed_attempts) == (JobState.QUEUED, Reason.RETRY, 1)
    gap = json.loads(stage.events(job, ["gap"])[0].data)
    assert (gap["source"], gap["from"]) == (0, 3)
    assert worker.beat().superseded


def test_a_repeated_heartbeat_does_not_extend_a_lease(stage: Stage) -> None:
    _, worker = stage.running()
    worker.beat()
    stage.rescue()
    stage.later(SETTINGS.lease_seconds + 1)
    worker.number -= 1
    worker.beat()

    assert stage.rescue().counts.attempts_lost == 1


def test_a_jump_of_the_wall_clock_loses_no_attempt(stage: Stage) -> None:
    job, worker = stage.running()
    worker.beat()
    stage.rescue()
    for hours in (1, -2):
        stage.now += hours * 3_600_000
        assert stage.rescue().counts.attempts_lost == 0
    assert stage.job(job).state is JobState.RUNNING


def test_a_superseded_attempt_changes_no_state_and_commits_no_checkpoint(stage: Stage) -> None:
    job, zombie = stage.running()
    stage.rescue()
    stage.later(SETTINGS.lease_seconds + 1)
    stage.rescue()
    stage.node()
    stage.place()
    stage.claim(job).says_running()

    zombie.checkpoints(7)
    ingested = zombie.finishes()

    assert stage.job(job).state is JobState.RUNNING
    assert stage.read(lambda conn: checkpoints.of_job(conn, job)) == []
    assert ingested.replies[zombie.claim].closed


def test_late_logs_of_a_lost_attempt_are_kept_until_the_job_has_ended(stage: Stage) -> None:
    job, late = stage.running()
    stage.rescue()
    stage.later(SETTINGS.lease_seconds + 1)
    stage.rescue()
    assert late.logs(1).counts.events_stored == 1

    stage.cancel(job)
    dropped = late.logs(2)

    assert (dropped.counts.events_stored, dropped.counts.events_late) == (0, 1)
    assert dropped.watermarks[job, 1, 0] == 3
    assert dropped.replies[late.claim].closed


def test_a_job_lost_three_times_without_a_checkpoint_fails_as_poison(stage: Stage) -> None:
    job, _ = stage.running(retry={"max_attempts": 50})
    for _ in range(3):
        stage.rescue()
        stage.later(SETTINGS.lease_seconds + 1)
        stage.rescue()
        stage.node()
        if stage.place():
            stage.claim(job).says_running()

    row = stage.job(job)
    assert (row.state, row.reason) == (JobState.FAILED, Reason.POISON)


def test_a_failed_job_is_counted_once_under_the_reason_that_it_shows(stage: Stage) -> None:
    once = {"max_attempts": 1}
    (reported, reporting_worker), (silent, _), (restarted, node) = (stage.running(retry=once) for _ in range(3))
    stage.rescue()

    counted = [+reporting_worker.fails("error").counts.jobs_failed]
    stage.beat_node(node.node, boot="boot-2", effects=(effects := Effects()))
    counted.append(+effects.counts.jobs_failed)
    stage.later(SETTINGS.lease_seconds + 1)
    counted += [+stage.rescue().counts.jobs_failed, +stage.rescue().counts.jobs_failed]

    reasons = [stage.job(job).reason for job in (reported, restarted, silent)]
    assert counted == [{reasons[0]: 1}, {reasons[1]: 1}, {reasons[2]: 1}, {}]
    assert {stage.job(job).state for job in (reported, silent, restarted)} == {JobState.FAILED}


def test_a_job_whose_lost_attempts_save_new_checkpoints_is_not_poison(stage: Stage) -> None:
    job, worker = stage.running(retry={"max_attempts": 50})
    for step in range(4):
        worker.checkpoints(step)
        stage.rescue()
        stage.later(SETTINGS.lease_seconds + 1)
        stage.rescue()
        stage.node()
        assert stage.place() == [job]
        worker = stage.claim(job)
        worker.says_running()

    assert stage.job(job).state is JobState.RUNNING


@pytest.mark.own_statement
def test_an_unclaimed_attempt_goes_back_to_the_queue_without_using_a_retry(stage: Stage) -> None:
    stage.node()
    job = stage.submit()
    stage.place()
    late = stage.job(job)
    stage.rescue()
    stage.later(SETTINGS.claim_seconds + 1)

    stage.rescue()

    row = stage.job(job)
    assert (row.state, row.reason, row.failed_attempts) == (JobState.QUEUED, Reason.NOT_CLAIMED, 0)
    assert late.attempt == row.attempt == 1
    assert isinstance(stage.ask(job).answer, Denial)


def test_a_job_claimed_during_its_return_to_the_queue_keeps_running(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage.node()
    job = stage.submit()
    stage.place()
    starting = stage.job(job)
    worker = stage.claim(job)
    worker.says_running()
    # A control that has lost its lock, and has not noticed this, may still act on rows that it read before.
    monkeypatch.setattr("service.store.jobs.active", lambda conn: [starting])
    monkeypatch.setattr("service.jobs.rescue._ActiveJob._waited_for_claims", lambda look: True)
    parts = [replace(part, claim=None) for part in stage.sources(job)]
    monkeypatch.setattr("service.store.attempts.sources_of", lambda *_: parts)
    stage.rescue()
    monkeypatch.undo()

    assert stage.job(job).state is JobState.RUNNING
    assert not worker.beat().superseded


def test_a_running_job_without_a_node_continues_elsewhere(stage: Stage) -> None:
    job, _ = stage.running()
    stage.write(lambda conn: attempts.end_sources(conn, job, 1, stage.now))

    stage.rescue()

    assert (stage.job(job).state, stage.job(job).reason) == (JobState.QUEUED, Reason.RETRY)


@pytest.mark.parametrize(("verb", "state"), [("cancel", JobState.CANCELLED), ("pause", JobState.PAUSED)])
def test_a_stopping_job_ends_although_its_worker_is_lost(stage: Stage, verb: str, state: JobState) -> None:
    job, _ = stage.running()
    getattr(stage, verb)(job)
    stage.rescue()
    stage.later(SETTINGS.lease_seconds + 1)

    stage.rescue()

    assert stage.job(job).state is state


def test_a_stop_that_a_node_ignores_ends_at_its_deadline(stage: Stage) -> None:
    job, worker = stage.running()
    stage.cancel(job)
    stage.rescue()
    for _ in range(8):
        stage.later(10)
        worker.beat()
        stage.rescue()

    assert stage.job(job).state is JobState.CANCELLED
    assert worker.beat().superseded


def test_a_restarted_node_loses_the_attempts_that_it_ran(stage: Stage) -> None:
    job, worker = stage.running()

    stage.beat_node(worker.node, boot="boot-2", effects=(effects := Effects()))

    assert effects.counts.attempts_lost == 1
    assert stage.job(job).state is JobState.QUEUED
    assert stage.place() == [job]


@pytest.mark.parametrize(("since_its_beat", "is_lost"), [(SETTINGS.lease_seconds - 0.5, True), (0.5, False)])
def test_a_job_that_was_lost_with_its_node_is_not_placed_there_again(
    stage: Stage, since_its_beat: float, is_lost: bool
) -> None:
    """The node's last heartbeat came just after the attempt's. A node with a hung supervisor still sends heartbeats."""
    job, worker = stage.running()
    stage.rescue()
    stage.later(SETTINGS.lease_seconds + 0.5 - since_its_beat)
    stage.timers.renew(node_key(worker.node, worker.boot), 1, stage.clock)
    stage.later(since_its_beat)

    rescued = stage.rescue()

    assert rescued.nodes_lost == [worker.node] * is_lost
    stage.later(60)
    assert stage.place() == [job] * (not is_lost)


def test_a_heartbeat_of_an_earlier_boot_is_refused_and_changes_nothing(stage: Stage) -> None:
    job, worker = stage.running()
    stage.beat_node(worker.node, boot="boot-2")
    stage.place()
    stage.claim(job).says_running()

    stale = stage.beat_node(worker.node, boot="boot-1")

    assert stale.refused is not None
    assert stage.job(job).state is JobState.RUNNING


def test_a_late_heartbeat_of_an_earlier_boot_that_control_never_saw_is_refused(stage: Stage) -> None:
    """A heartbeat of the second boot may arrive after one of the third boot if Redis was frozen."""
    _, worker = stage.running()
    stage.beat_node(worker.node, boot="boot-3")

    assert stage.beat_node(worker.node, boot="boot-2").refused is not None
    assert stage.beat_node(worker.node, boot="boot-3").refused is None


def test_a_drained_job_continues_elsewhere_without_using_a_retry(stage: Stage) -> None:
    job, worker = stage.running()

    stage.beat_node(worker.node, draining=True, effects=(effects := Effects()))
    reply = worker.beat()
    worker.ends("stopped", "drain", stop="drain")

    assert effects.stop_requested == {job}
    assert reply.stop is not None
    assert reply.stop.because == "drain"
    row = stage.job(job)
    assert (row.state, row.reason, row.failed_attempts) == (JobState.QUEUED, Reason.DRAINED, 0)
    assert stage.place() == []
    assert "draining" in (stage.job(job).message or "")
    stage.node()
    assert stage.place() == [job]


def test_a_node_that_drained_its_attempt_gets_no_job_before_its_next_heartbeat(stage: Stage) -> None:
    _, worker = stage.running()

    worker.ends("stopped", "drain", stop="drain")

    assert stage.place() == []


@pytest.mark.own_statement
def test_a_job_at_its_time_limit_fails_and_resumes_only_with_a_longer_limit(stage: Stage) -> None:
    job, worker = stage.running(resources={"time_limit": 100})
    stage.rescue()
    for _ in range(11):
        stage.later(10)
        worker.beat()
        stage.rescue()
    reply = worker.beat()
    assert reply.stop is not None
    assert reply.stop.because == "time_limit"
    worker.ends("stopped", "time_limit", running_s=101)

    row = stage.job(job)
    assert (row.state, row.reason) == (JobState.FAILED, Reason.TIME_LIMIT)
    with pytest.raises(Conflict) as error:
        stage.resume(job)
    assert "time_limit" in str(error.value.hint)
    assert stage.resume(job, Resume(time_limit="1h")).state is JobState.QUEUED
