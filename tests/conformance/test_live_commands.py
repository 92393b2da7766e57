"""Tests live commands. An attempt gets each command once, and later attempts keep the changed arguments."""

from __future__ import annotations

import json
from typing import Any

import pytest

from footplate.contract.errors import Conflict
from footplate.contract.events import Kind
from footplate.contract.ids import JobId
from footplate.contract.lifecycle import JobState
from footplate.contract.messages import Command, Grant
from service.jobs.do import Do, do
from service.jobs.inbox import unasked_replies
from service.jobs.resume import Resume
from service.store import commands
from tests.conformance.acting import Stage, Worker

SLOWER = {"learning_rate": 1e-5}


def ask(stage: Stage, job: JobId, **wish: Any) -> int:
    """Requests a command, and returns the number of the command."""
    return stage.write(lambda conn: do(conn, "default", job, Do(**wish), stage.now, by="me")).last_no


def does(worker: Worker, number: int, step: int, status: str = "done", **says: Any) -> None:
    data = {"status": status, "message": "", "asked": number, **says}
    worker.send(worker.write(Kind.DO, data, step))


def pushed_commands(stage: Stage) -> list[list[int]]:
    """Returns the numbers of the commands that control would push to workers now, without waiting for a heartbeat."""
    result = stage.read(lambda conn: unasked_replies(conn, stage.stop_left))
    return [[command.no for command in reply.commands] for reply in result.values()]


def next_attempt(stage: Stage, job: JobId) -> list[Command]:
    """Starts the attempt that follows a lost attempt, and returns the commands in its grant."""
    stage.place()
    worker = stage.claim(job)
    worker.says_running()
    assert isinstance(worker.answer, Grant)
    return worker.answer.commands


@pytest.mark.own_statement
def test_a_command_is_in_heartbeat_replies_until_received_and_pushed_until_done(stage: Stage) -> None:
    job, worker = stage.running()
    first, second = ask(stage, job, save=True), ask(stage, job, set=SLOWER)

    first_numbers = [command.no for command in worker.beat().commands]
    worker.last_command = first
    next_numbers = [command.no for command in worker.beat().commands]

    assert (first_numbers, next_numbers) == ([first, second], [second])
    assert pushed_commands(stage) == [[first, second]]
    does(worker, first, 7, save=True)
    assert pushed_commands(stage) == [[second]]
    does(worker, second, 7, set={"learning_rate": {"from": 1, "to": 1e-5}})
    assert pushed_commands(stage) == []
    request = json.loads(stage.events(job, ["do"])[0].data)
    assert (request["status"], request["by"], request["save"]) == ("asked", "me", True)


def test_the_next_attempt_gets_changed_arguments_but_no_finished_save(stage: Stage) -> None:
    job, worker = stage.running()
    number = ask(stage, job, save=True, set={**SLOWER, "max_steps": 2})
    does(worker, number, 7, save=True, set={"learning_rate": {"from": 1, "to": 1e-5}}, refused={"max_steps": "late"})
    waiting = ask(stage, job, save=True)
    worker.fails()

    assert next_attempt(stage, job) == [Command(no=number, set=SLOWER, step=7), Command(no=waiting, save=True)]


def test_a_repeated_or_late_report_of_a_command_changes_nothing(stage: Stage) -> None:
    job, worker = stage.running()
    number = ask(stage, job, set=SLOWER)
    worker.fails()
    stage.place()
    again = stage.claim(job)
    again.says_running()

    does(worker, number, 7, set={"learning_rate": {"from": 1, "to": 2}})
    assert [command.step for command in again.beat().commands] == [None]
    does(again, number, 9, set={"learning_rate": {"from": 1, "to": 1e-5}})
    does(again, number, 11, "again", set={"learning_rate": {"from": 1, "to": 1e-5}})
    again.fails()

    assert [command.step for command in next_attempt(stage, job)] == [9]


def test_training_cannot_report_a_change_that_no_user_requested(stage: Stage) -> None:
    """A user's code can write to the same socket as the training loop."""
    job, worker = stage.running()
    number = ask(stage, job, set=SLOWER)

    does(worker, number, 7, set={"max_steps": {"from": 1, "to": 2}}, evaluate=True)
    does(worker, 999, 7, set=SLOWER)
    worker.fails()

    assert all(not command.set and not command.save for command in next_attempt(stage, job))


@pytest.mark.own_statement
def test_a_job_that_succeeds_reports_commands_that_it_did_not_carry_out(stage: Stage) -> None:
    job, worker = stage.running()
    number = ask(stage, job, save=True)

    worker.finishes()

    dropped = json.loads(stage.events(job, ["do"])[-1].data)
    assert (dropped["status"], dropped["asked"]) == ("dropped", number)
    assert stage.read(lambda conn: commands.of_job(conn, job)) == []
    assert stage.states(job)[-1] == "succeeded"


@pytest.mark.own_statement
def test_a_command_survives_a_pause_and_a_resume_overrides_its_max_steps(stage: Stage) -> None:
    job, worker = stage.running()
    number = ask(stage, job, set={**SLOWER, "max_steps": 900})
    stage.pause(job)
    worker.stops()
    with pytest.raises(Conflict) as error:
        ask(stage, job, save=True)
    assert error.value.state == "paused"

    stage.resume(job, Resume(max_steps=500))

    assert stage.job(job).state is JobState.QUEUED
    assert next_attempt(stage, job) == [Command(no=number, set=SLOWER)]


def test_a_stopping_job_gets_no_further_commands(stage: Stage) -> None:
    job, _ = stage.running()
    stage.cancel(job)

    with pytest.raises(Conflict) as error:
        ask(stage, job, save=True)
    assert error.value.state == "stopping"
    assert "do" not in error.value.allowed
