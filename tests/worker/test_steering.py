"""Tests live commands, which take effect after the current step exactly as if the arguments had said so."""

from __future__ import annotations

import json
import os
import selectors
import socket
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from footplate.contract.host.launch import COMMANDS_AT
from footplate.contract.messages import Command
from footplate.runtime.emit import EventSocket
from footplate.runtime.live_commands import FootplateRun, LiveCommands
from footplate.trainer.callbacks import TrainerCallback
from tests.support.training import Events, Fingerprint, fingerprint
from tests.trainer.test_changing import a_trainer, codec
from worker.attempt.training_processes import Training


class Supervisor:
    """The supervisor's end of a training process, which sends commands and reads events."""

    def __init__(self) -> None:
        self.training = Training(selectors.DefaultSelector(), lambda events: None)
        self._ours, self._theirs = socket.socketpair()
        self.event_socket = EventSocket(self._theirs.detach())
        self.fd = self.training._stop_fd

    def read_events(self) -> list[dict[str, Any]]:
        self.event_socket.send("outcome", {})
        self._ours.settimeout(60)
        data = b""
        while not (data.endswith(b"\n") and json.loads(data.splitlines()[-1])["kind"] == "outcome"):
            data += self._ours.recv(1 << 20)
        return [json.loads(line) for line in data.splitlines()[:-1]]

    def close(self) -> None:
        self._ours.close()
        self.training.close()


@pytest.fixture
def new_supervisor() -> Iterator[Callable[[], Supervisor]]:
    """Yields a function that makes a supervisor, because each attempt has a supervisor of its own."""
    supervisors: list[Supervisor] = []

    def make() -> Supervisor:
        supervisors.append(Supervisor())
        return supervisors[-1]

    yield make
    for instance in supervisors:
        instance.close()


@pytest.fixture
def supervisor(new_supervisor: Callable[[], Supervisor]) -> Supervisor:
    return new_supervisor()


class SendAtStep(TrainerCallback):
    """Sends commands at the start of one step."""

    def __init__(self, supervisor: Supervisor, step: int, *commands: Command) -> None:
        self.supervisor, self.step, self.commands = supervisor, step, commands

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step == self.step - 1:
            for command in self.commands:
                self.supervisor.training.send_command(command)


def run(
    folder: Path, supervisor: Supervisor, *callbacks: TrainerCallback, commands: Sequence[Command] = (),
    resume: Path | None = None, **arguments: Any,
) -> tuple[Fingerprint, Events]:  # fmt: skip
    events = Events()
    trainer = a_trainer(folder, events, *callbacks, **{"logging_steps": 1, **arguments})
    live_commands = LiveCommands(supervisor.event_socket, supervisor.fd, commands)
    live_commands.run = FootplateRun(trainer, trainer._footplate.strategy.peers)
    live_commands.begin(None if resume is None else str(resume))
    trainer.add_callback(live_commands)
    trainer.train(resume_from_checkpoint=resume)
    return fingerprint(trainer, events.losses), events


def test_a_commanded_save_and_evaluation_equal_scheduled_ones(tmp_path: Path, supervisor: Supervisor) -> None:
    steps = {"eval_strategy": "steps", "save_strategy": "steps", "eval_steps": 4, "save_steps": 4, "max_steps": 4}
    own, by_itself = run(tmp_path / "own", supervisor, **steps)

    command = Command(no=9, save=True, evaluate=True)
    never = {"eval_strategy": "no", "save_strategy": "no", "max_steps": 4}
    commanded, events = run(tmp_path / "asked", supervisor, SendAtStep(supervisor, 4, command), **never)

    assert events.names == by_itself.names
    assert (commanded, [checkpoint.step for checkpoint in events.checkpoints]) == (own, [4])
    [message] = supervisor.read_events()
    assert message["data"] == {
        "status": "done",
        "message": "saves a checkpoint; evaluates the model",
        "asked": 9,
        "save": True,
        "evaluate": True,
    }
    assert (message["kind"], message["step"]) == ("do", 4)


def test_a_changed_rate_of_one_optimizer_is_reported_without_the_others(tmp_path: Path, supervisor: Supervisor) -> None:
    command = Command(no=9, set={"learning_rate": {"aux": 1e-2}})
    live_commands = LiveCommands(supervisor.event_socket, supervisor.fd, [])
    trainer = codec(tmp_path, SendAtStep(supervisor, 4, command), live_commands)
    live_commands.run = FootplateRun(trainer, trainer._footplate.strategy.peers)
    live_commands.begin(None)

    trainer.train()

    [message] = supervisor.read_events()
    assert message["data"]["message"] == "learning_rate.aux is 0.01, was 0.05"


def test_changed_arguments_apply_to_later_attempts_bit_identically(
    tmp_path: Path, new_supervisor: Callable[[], Supervisor]
) -> None:
    """The run resumes from a checkpoint before the command, and from one after it."""
    command = Command(no=9, evaluate=True, set={"learning_rate": 4e-3, "max_steps": 16})
    evals = {"eval_strategy": "steps", "eval_steps": 5}
    first, second, third = new_supervisor(), new_supervisor(), new_supervisor()
    whole, _ = run(tmp_path, first, SendAtStep(first, 7, command), **evals)
    past_commands = [command.model_copy(update={"step": 7})]

    older, again = run(tmp_path, second, commands=past_commands, resume=tmp_path / "checkpoint-5", **evals)
    newer, _ = run(tmp_path, third, commands=past_commands, resume=tmp_path / "checkpoint-10", **evals)

    assert older == Fingerprint(whole.weights, whole.optimizer, whole.schedule, whole.rng, whole.losses[5:])
    assert newer == Fingerprint(whole.weights, whole.optimizer, whole.schedule, whole.rng, whole.losses[10:])
    assert [row["step"] for row in again.logs if "eval_loss" in row] == [7, 10, 15, 16]
    [at_once], [later], [before] = first.read_events(), second.read_events(), third.read_events()
    changed = {"learning_rate": {"from": 0.01, "to": 0.004}, "max_steps": {"from": 14, "to": 16}}
    assert at_once["data"]["set"] == later["data"]["set"] == changed
    assert [(item["step"], item["data"]["status"]) for item in (at_once, later)] == [(7, "done"), (7, "again")]
    assert "learning_rate 0.004, max_steps 16" in before["data"]["message"]


def test_commands_left_by_an_attempt_run_after_the_first_step_of_the_next(
    tmp_path: Path, supervisor: Supervisor
) -> None:
    waiting = [Command(no=3, save=True), Command(no=4, set={"max_steps": 6})]

    _, events = run(tmp_path, supervisor, commands=waiting, save_strategy="no")

    assert [checkpoint.step for checkpoint in events.checkpoints] == [1]
    assert [(message["data"]["asked"], message["step"]) for message in supervisor.read_events()] == [(3, 1), (4, 1)]
    assert events.logs[-1]["step"] == 6


def test_a_command_that_cannot_be_done_is_answered_with_the_reason(tmp_path: Path, supervisor: Supervisor) -> None:
    late = Command(no=5, set={"max_steps": 2, "logging_steps": 2})

    run(tmp_path, supervisor, SendAtStep(supervisor, 3, late), max_steps=4)

    [message] = supervisor.read_events()
    [(name, why)] = message["data"]["refused"].items()
    assert (name, "3" in why, "4" in why) == ("max_steps", True, True)
    assert message["data"]["set"] == {"logging_steps": {"from": 1, "to": 2}}
    assert message["data"]["message"].endswith(why)


def test_a_half_written_command_is_read_once_it_is_complete(tmp_path: Path, supervisor: Supervisor) -> None:
    live_commands = LiveCommands(supervisor.event_socket, supervisor.fd, [])
    supervisor.training.send_command(Command(no=1, save=True))
    whole = supervisor.training._command_bytes
    supervisor.training.send_command(Command(no=2, save=True))
    supervisor.training._stop_byte[COMMANDS_AT] = (whole + 5).to_bytes(8, "little")

    first = live_commands._receive()
    supervisor.training._stop_byte[COMMANDS_AT] = supervisor.training._command_bytes.to_bytes(8, "little")

    assert [command.no for command in first] == [1]
    assert [command.no for command in live_commands._receive()] == [2]
    assert os.fstat(supervisor.fd).st_size > 4096
