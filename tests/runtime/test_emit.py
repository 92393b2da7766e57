"""Tests the event socket of training, which never blocks and never loses important events."""

from __future__ import annotations

import json
import math
import mmap
import os
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from footplate.components import toy
from footplate.contract.host.artifacts import AttemptFiles
from footplate.contract.host.launch import STOP_BYTES
from footplate.contract.ids import new_job_id
from footplate.contract.lifecycle import StopMode
from footplate.runtime.emit import Emit, EventSocket, StoppedEvaluating
from footplate.trainer.arguments import TrainingArguments
from footplate.trainer.callbacks import TrainerCallback
from footplate.trainer.state import TrainerControl, TrainerState
from footplate.trainer.strategies.peers import OneProcess
from footplate.trainer.trainer import Trainer, set_seed
from tests.support.processes import at_ease


@pytest.fixture
def reader() -> Iterator[socket.socket]:
    ours, theirs = socket.socketpair()
    ours.settimeout(60)
    theirs_fd[0] = theirs.detach()
    yield ours
    ours.close()


theirs_fd = [0]


def lines(reader: socket.socket, until: str, event_socket: EventSocket | None = None) -> list[dict[str, Any]]:
    """Returns all events up to the first event of this kind."""
    data = b""
    while not (data.endswith(b"\n") and json.loads(data.splitlines()[-1])["kind"] == until):
        if event_socket is not None:
            event_socket.flush()
        data += reader.recv(1 << 20)
    return [json.loads(line) for line in data.splitlines()]


def test_a_full_socket_merges_logs_and_loses_no_evaluation_or_command(reader: socket.socket) -> None:
    event_socket = EventSocket(theirs_fd[0])
    start = time.monotonic()
    for step in range(30_000):
        event_socket.send("log", {"loss": 1.0}, step)
        if step % 100 == 0:
            event_socket.send("do", {"status": "done"}, step)
        if step % 1000 == 0:
            event_socket.send("eval", {"eval_loss": 1.0}, step)
    # A send that blocks would wait for ever, because no process reads the socket.
    assert time.monotonic() - start < 120
    event_socket.send("outcome", {})

    events = lines(reader, "outcome", event_socket)

    logs = [event["step"] for event in events if event["kind"] == "log"]
    merged = sum(event["data"].get("merged", 0) for event in events)
    for kind, interval in (("eval", 1000), ("do", 100)):
        assert [event["step"] for event in events if event["kind"] == kind] == list(range(0, 30_000, interval))
    assert logs == sorted(logs)
    assert logs[-1] == 29_999
    assert len(logs) + merged == 30_000
    assert merged > 10_000


def test_user_notes_that_wait_to_be_sent_are_merged_to_limit_memory(reader: socket.socket, tmp_path: Path) -> None:
    emit, _ = emit_with_stop_byte(tmp_path)
    for number in range(30_000):
        emit.users_note(f"note {number}")
    emit.event_socket.send("outcome", {})

    events = lines(reader, "outcome", emit.event_socket)

    merged = sum(event["data"].get("merged", 0) for event in events)
    users = [event for event in events if event["data"].get("message", "").startswith("note ")]
    assert merged > 10_000
    assert len(users) + merged == 30_000
    assert users[-1]["data"]["message"] == "note 29999"


def test_a_huge_event_is_sent_without_its_large_fields_and_marked_truncated(reader: socket.socket) -> None:
    event_socket = EventSocket(theirs_fd[0])
    event_socket.send("log", {"loss": 1.0, "matrix": [0.0] * 30_000})
    event_socket.send("outcome", {})

    [event, _] = lines(reader, "outcome", event_socket)

    assert event["data"]["loss"] == 1.0
    assert event["data"]["truncated"] is True
    assert "matrix" not in event["data"]


def test_events_that_several_threads_send_arrive_whole_and_once(reader: socket.socket) -> None:
    event_socket = EventSocket(theirs_fd[0])

    def send(thread: int) -> None:
        for number in range(2000):
            event_socket.send("note", {"message": f"{thread}/{number}"})

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(send, range(4)))
    event_socket.send("outcome", {})

    *notes, _ = lines(reader, "outcome", event_socket)

    messages = sorted(f"{thread}/{number}" for thread in range(4) for number in range(2000))
    assert sorted(note["data"]["message"] for note in notes) == messages


def test_sending_events_does_not_fail_if_the_reader_is_closed(reader: socket.socket) -> None:
    event_socket = EventSocket(theirs_fd[0])
    reader.close()

    event_socket.send("state", {"state": "running"})
    event_socket.flush(within=1)


def emit_with_stop_byte(tmp_path: Path) -> tuple[Emit, mmap.mmap]:
    fd = os.memfd_create("stop")
    os.ftruncate(fd, mmap.PAGESIZE)
    emit = Emit(EventSocket(theirs_fd[0]), fd, AttemptFiles(tmp_path, new_job_id(), 1))
    return emit, mmap.mmap(fd, mmap.PAGESIZE)


@pytest.mark.parametrize(("mode", "saves"), [(StopMode.CHECKPOINT, True), (StopMode.GRACEFUL, False)])
def test_the_stop_byte_stops_the_training_loop(
    reader: socket.socket, tmp_path: Path, mode: StopMode, saves: bool
) -> None:
    emit, byte = emit_with_stop_byte(tmp_path)
    control = TrainerControl()
    emit.on_step_end(None, TrainerState(global_step=1, max_steps=9), control)
    assert not control.should_training_stop

    byte[0] = STOP_BYTES[mode]
    emit.on_step_end(None, TrainerState(global_step=2, max_steps=9), control)

    assert (control.should_training_stop, control.should_save) == (True, saves)
    assert emit.obeyed is mode


@pytest.mark.parametrize("stop_at", [3, 6], ids=["within an epoch", "at its end"])
def test_a_stopped_run_with_evaluations_at_epochs_resumes_bit_identically(
    reader: socket.socket, tmp_path: Path, stop_at: int
) -> None:
    """A stop must not wait for an evaluation, and the resumed run evaluates once, at the epoch's end."""
    evaluated_steps: list[int] = []

    class Watch(TrainerCallback):
        def on_evaluate(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            evaluated_steps.append(state.global_step)

        def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if state.global_step == self.stop_after:
                byte[0] = STOP_BYTES[StopMode.CHECKPOINT]

        def __init__(self, stop_after: int | None = None) -> None:
            self.stop_after = stop_after

    def train(folder: Path, callbacks: list[Any], *, resume: bool = False) -> Any:
        args = TrainingArguments(
            str(folder), num_train_epochs=2, eval_strategy="epoch", save_strategy="epoch", disable_tqdm=True
        )
        set_seed(7)
        trainer = Trainer(
            toy.mlp(hidden=4, dropout=0.2), args, train_dataset=toy.regression(n=48),
            eval_dataset=toy.regression(n=8), callbacks=callbacks,
        )  # fmt: skip
        trainer.train(resume_from_checkpoint=resume)
        return trainer.model.state_dict()

    undisturbed = train(tmp_path / "undisturbed", [Watch()])
    assert evaluated_steps == [6, 12]
    evaluated_steps.clear()
    emit, byte = emit_with_stop_byte(tmp_path)

    train(tmp_path / "stopped", [Watch(stop_at - 1), emit])
    assert evaluated_steps == []
    resumed = train(tmp_path / "stopped", [Watch()], resume=True)

    assert evaluated_steps == [6, 12]
    assert all(value.equal(undisturbed[name]) for name, value in resumed.items())


def test_an_evaluation_after_training_ends_when_a_stop_is_requested(reader: socket.socket, tmp_path: Path) -> None:
    emit, stop = emit_with_stop_byte(tmp_path)
    args, state, control = SimpleNamespace(metric_for_best_model=None), TrainerState(max_steps=10), TrainerControl()
    emit.on_train_begin(args, state, control)
    stop[0] = STOP_BYTES[StopMode.GRACEFUL]

    # During training, the next step stops the run, and not the evaluation.
    emit.on_prediction_step(args, state, control)
    assert emit.obeyed is None
    emit.on_train_end(args, state, control)
    with pytest.raises(StoppedEvaluating):
        emit.on_prediction_step(args, state, control)
    assert emit.obeyed is StopMode.GRACEFUL


def test_a_stop_in_a_forward_pass_of_a_single_process_needs_no_other_process(
    reader: socket.socket, tmp_path: Path
) -> None:
    class Unreachable(OneProcess):
        def any(self, flags: list[bool]) -> list[bool]:
            raise AssertionError("the other ranks do not take part in this forward pass")

    emit, stop = emit_with_stop_byte(tmp_path)
    emit.peers = Unreachable()
    args, state, control = SimpleNamespace(metric_for_best_model=None), TrainerState(max_steps=0), TrainerControl()

    emit.on_prediction_step(args, state, control, is_alone=True)
    stop[0] = STOP_BYTES[StopMode.GRACEFUL]
    with pytest.raises(StoppedEvaluating):
        emit.on_prediction_step(args, state, control, is_alone=True)


def test_the_last_progress_of_a_run_that_stops_early_is_its_last_step(reader: socket.socket, tmp_path: Path) -> None:
    emit, _ = emit_with_stop_byte(tmp_path)
    args, state, control = SimpleNamespace(metric_for_best_model=None), TrainerState(max_steps=100), TrainerControl()
    emit.on_train_begin(args, state, control)
    for state.global_step in (1, 2, 3):
        emit.on_step_end(args, state, control)
    emit.on_train_end(args, state, control)
    emit.event_socket.send("outcome", {})

    assert [line["step"] for line in lines(reader, "outcome") if line["kind"] == "progress"] == [1, 3]


def test_the_last_step_before_a_failure_is_reported_once(reader: socket.socket, tmp_path: Path) -> None:
    emit, _ = emit_with_stop_byte(tmp_path)

    for step in (1, 2, 3):
        emit.on_step_end(None, TrainerState(global_step=step, max_steps=10), TrainerControl())
    emit.last_progress()
    emit.last_progress()
    emit.event_socket.send("note", {})

    steps = [line["step"] for line in lines(reader, "note") if line["kind"] == "progress"]
    assert steps == [1, 3], "the first and the last step are reported, and the steps shortly after the first are not"


@pytest.mark.parametrize(("step", "metric", "score"), [
    (20, "loss", 0.5), (20, "eval_loss", 0.5), (25, "loss", None), (30, "loss", None), (20, None, None),
    (20, "lm_eval/mine/acc", 0.7),
])  # fmt: skip
def test_the_score_of_a_checkpoint_is_the_metric_of_its_own_step(
    reader: socket.socket, tmp_path: Path, step: int, metric: str | None, score: float | None
) -> None:
    emit, _ = emit_with_stop_byte(tmp_path)
    (tmp_path / "saved").mkdir()
    evaluation = {"eval_loss": 0.5, "lm_eval/mine/acc": 0.7, "step": 20}
    log: list[Any] = [{"loss": 9.0, "step": 20}, evaluation, {"eval_loss": math.nan, "step": 30}]
    checkpoint = SimpleNamespace(path=tmp_path / "saved", step=step, bytes=1, manifest_sha256="")
    args = SimpleNamespace(metric_for_best_model=metric)

    emit.on_save(args, TrainerState(log_history=log), TrainerControl(), checkpoint=checkpoint)

    assert lines(reader, "checkpoint")[-1]["data"]["score"] == score


def test_reporting_a_step_takes_at_most_two_microseconds(reader: socket.socket, tmp_path: Path) -> None:
    emit, _ = emit_with_stop_byte(tmp_path)
    state, control = TrainerState(global_step=1, max_steps=9), TrainerControl()
    emit.on_step_end(None, state, control)

    def microseconds() -> float:
        start = time.thread_time()
        for _ in range(10_000):
            emit.on_step_end(None, state, control)
        return (time.thread_time() - start) * 100

    assert min(microseconds() for _ in range(5)) < at_ease(2)
