"""Tests the events of callbacks, their order and their arguments."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from footplate.components import toy
from footplate.trainer.arguments import TrainingArguments
from footplate.trainer.callbacks import (
    CallbackHandler,
    EarlyStoppingCallback,
    ExportableState,
    PrinterCallback,
    ProgressCallback,
    TrainerCallback,
)
from footplate.trainer.trainer import Trainer
from tests.support.training import Events


def a_trainer(folder: Path, *callbacks: Any, **values: Any) -> Trainer:
    compute_metrics = values.pop("compute_metrics", None)
    args = TrainingArguments(str(folder), **{"disable_tqdm": True, "save_strategy": "no", **values})
    return Trainer(
        toy.mlp(),
        args,
        train_dataset=toy.regression(n=40),
        eval_dataset=toy.regression(n=16, seed=1),
        compute_metrics=compute_metrics,
        callbacks=list(callbacks),
    )


def test_callbacks_receive_the_documented_arguments(tmp_path: Path) -> None:
    arguments: dict[str, Any] = {}

    class Look(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            arguments.update(kwargs)

        def on_evaluate(self, args: Any, state: Any, control: Any, metrics: Any = None, **kwargs: Any) -> None:
            arguments["metrics"] = metrics

    trainer = a_trainer(tmp_path, Look, max_steps=2, eval_strategy="steps", eval_steps=1)
    trainer.train()

    assert arguments["model"] is trainer.model
    assert arguments["optimizer"] is trainer.optimizer
    assert arguments["lr_scheduler"] is trainer.lr_scheduler
    assert arguments["train_dataloader"] is not None
    assert arguments["eval_dataloader"] is not None
    assert "eval_loss" in arguments["metrics"]


def test_a_callback_subclass_may_pass_metrics_and_logs_to_super_by_position(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Callbacks that were written for Hugging Face's classes call `super()` in this way."""

    class Stop(EarlyStoppingCallback):
        def on_evaluate(self, args: Any, state: Any, control: Any, metrics: Any, **kwargs: Any) -> Any:
            return super().on_evaluate(args, state, control, metrics, **kwargs)

        def on_predict(self, args: Any, state: Any, control: Any, metrics: Any, **kwargs: Any) -> Any:
            return super().on_predict(args, state, control, metrics, **kwargs)

    class Print(PrinterCallback):
        def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> Any:
            return super().on_log(args, state, control, logs, **kwargs)

    class Bar(ProgressCallback):
        def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> Any:
            return super().on_log(args, state, control, {**logs, "text": "a long text"}, **kwargs)

    callbacks = [Stop(), Print(), Bar(max_str_len=6)]
    values = {"max_steps": 2, "eval_strategy": "steps", "eval_steps": 1, "metric_for_best_model": "loss"}
    trainer = a_trainer(tmp_path, *callbacks, **values)
    trainer.train()
    trainer.predict(toy.regression(n=8))

    output = capsys.readouterr()
    assert output.out.count("'eval_loss'") == 6  # Print, Bar and the Trainer itself each print two evaluations
    assert "'text': 'a long…'" in output.out


def test_the_progress_callback_prints_lines_without_a_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """SetFit's tests look for this callback, and scripts remove it by its class to silence the output."""
    trainer = a_trainer(tmp_path, max_steps=2, logging_steps=1, disable_tqdm=None)

    trainer.train()

    output = capsys.readouterr()
    assert output.out.count("'loss'") == 2
    assert "it/s" not in output.err
    assert isinstance(trainer.pop_callback(ProgressCallback), ProgressCallback)


def test_on_train_end_is_called_after_an_error_in_training(tmp_path: Path) -> None:
    events = Events()

    class Break(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            raise RuntimeError("the user's own bug")

    trainer = a_trainer(tmp_path, events, Break())

    with pytest.raises(RuntimeError, match="the user's own bug"):
        trainer.train()

    assert events.names[-1] == "on_train_end"
    assert not trainer.is_in_train


def test_on_train_end_is_called_after_an_error_in_on_train_begin(tmp_path: Path) -> None:
    """Training may already have a handler for SIGTERM. If the handler stayed, SIGTERM could not stop the process."""
    events, before = Events(), signal.getsignal(signal.SIGTERM)

    class Break(TrainerCallback):
        def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            raise RuntimeError("the user's own bug")

    with pytest.raises(RuntimeError, match="the user's own bug"):
        a_trainer(tmp_path, events, Break(), enable_jit_checkpoint=True).train()

    after = signal.signal(signal.SIGTERM, before)
    assert events.names[-1] == "on_train_end"
    assert after == before


def test_an_error_in_on_train_end_does_not_hide_the_first_error(tmp_path: Path) -> None:
    class Break(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            raise RuntimeError("the cause")

        def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            raise KeyError("its consequence")

    with pytest.raises(RuntimeError, match="the cause") as error:
        a_trainer(tmp_path, Break()).train()

    assert "its consequence" in "".join(error.value.__notes__)


def test_callbacks_can_be_added_and_removed_during_training(tmp_path: Path) -> None:
    events = Events()

    class Add(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if state.global_step == 2:
                trainer.add_callback(events)
            if state.global_step == 4:
                trainer.remove_callback(events)

    trainer = a_trainer(tmp_path, Add(), max_steps=5)
    trainer.train()

    assert events.names.count("on_step_begin") == 2
    assert trainer.pop_callback(Add) is not None
    assert trainer.pop_callback(Add) is None


@pytest.mark.parametrize(
    ("accuracies", "threshold", "stops_at"),
    [
        # If the first evaluation of a run is NaN, the next number is an improvement.
        ([float("nan"), 0.1, 0.2, 0.3, 0.4], 0.0, 5),
        # Each value is compared with the best one so far, even if that one improved by less than the threshold.
        ([0.10, 0.16, 0.22, 0.28, 0.34], 0.1, 3),
    ],
)
def test_early_stopping_compares_with_the_best_value_so_far(
    tmp_path: Path, accuracies: list[float], threshold: float, stops_at: int
) -> None:
    report: Iterator[float] = iter(accuracies)
    trainer = a_trainer(
        tmp_path,
        EarlyStoppingCallback(2, threshold),
        max_steps=len(accuracies),
        eval_strategy="steps",
        eval_steps=1,
        metric_for_best_model="accuracy",
        compute_metrics=lambda prediction: {"accuracy": next(report)},
    )

    assert trainer.train().global_step == stops_at


def test_the_state_of_a_callback_is_restored_on_resume(tmp_path: Path) -> None:
    class Counts(TrainerCallback, ExportableState):
        def __init__(self) -> None:
            self.steps = 0

        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            self.steps += 1

        def state(self) -> dict[str, Any]:
            return {"args": {}, "attributes": {"steps": self.steps}}

    a_trainer(tmp_path, Counts(), max_steps=3, save_strategy="steps").train()
    counts = Counts()

    a_trainer(tmp_path, counts, max_steps=5, save_strategy="steps").train(resume_from_checkpoint=True)

    assert counts.steps == 5


class Named(TrainerCallback, ExportableState):
    def __init__(self, name: str = "new") -> None:
        self.name, self.count = name, 0

    def state(self) -> dict[str, Any]:
        return {"args": {"name": self.name}, "attributes": {"count": self.count}}


@pytest.mark.parametrize(
    ("restores", "expected"),
    [(True, [("first", 1), ("second", 2)]), (None, [("new", 1), ("new", 2)]), (False, [("new", 0), ("new", 0)])],
)
def test_several_callbacks_of_one_class_are_restored_in_order(
    tmp_path: Path, restores: bool | None, expected: list[tuple[str, int]]
) -> None:
    before = [Named("first"), Named("second")]
    before[0].count, before[1].count = 1, 2
    a_trainer(tmp_path, *before, max_steps=1, save_strategy="steps").train()
    after = [Named(), Named()]

    trainer = a_trainer(tmp_path, *after, max_steps=1, restore_callback_states_from_checkpoint=restores)
    trainer.train(resume_from_checkpoint=True)

    assert [(callback.name, callback.count) for callback in after] == expected
    assert trainer.control.should_training_stop is False, "a new run resets the request to stop"


def test_a_resume_logs_the_saved_callbacks_that_this_run_does_not_have(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    a_trainer(tmp_path, Named(), max_steps=1, save_strategy="steps").train()

    a_trainer(tmp_path, max_steps=1).train(resume_from_checkpoint=True)

    assert "callbacks that this run does not have: Named" in caplog.text


def test_a_repeated_callback_and_a_missing_default_flow_callback_are_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    a_trainer(tmp_path, Named(), Named())
    CallbackHandler([Named()], None, None, None, None)

    assert "there is already a callback Named" in caplog.text
    assert "without a DefaultFlowCallback" in caplog.text
