"""Tests arguments that change during a run. The run equals a run that began with them, also after a resume."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest

from footplate.components import toy
from footplate.trainer.arguments import TrainingArguments
from footplate.trainer.callbacks import TrainerCallback
from footplate.trainer.live_changes import ChangeResult, begin_with, change
from footplate.trainer.named import NamedOptimizer
from footplate.trainer.trainer import Trainer, set_seed
from tests.support.training import Events, Fingerprint, StopAt, fingerprint
from tests.trainer.parts.test_named_optimizers import AUX, MAIN, Codec


class ChangeAt(TrainerCallback):
    def __init__(self, step: int, **new_values: Any) -> None:
        self.step, self.wanted, self.trainer, self.result = step, new_values, None, ChangeResult()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step == self.step:
            self.result = change(self.trainer, self.wanted)  # type: ignore[arg-type]


def a_trainer(folder: Path, *callbacks: TrainerCallback, **arguments: Any) -> Trainer:
    values: dict[str, Any] = {
        "max_steps": 14, "per_device_train_batch_size": 8, "learning_rate": 1e-2, "warmup_steps": 3,
        "logging_steps": 1, "save_steps": 5, "disable_tqdm": True, **arguments,
    }  # fmt: skip
    set_seed(7)
    trainer = Trainer(
        toy.mlp(hidden=8, dropout=0.2),
        TrainingArguments(str(folder), **values),
        train_dataset=toy.regression(n=50),
        eval_dataset=toy.regression(n=16, seed=1),
        callbacks=list(callbacks),
    )
    for callback in callbacks:
        if isinstance(callback, ChangeAt):
            callback.trainer = trainer  # type: ignore[assignment]
    return trainer


def run(folder: Path, *callbacks: TrainerCallback, resume: Any = None, **arguments: Any) -> tuple[Fingerprint, Trainer]:
    events = Events()
    trainer = a_trainer(folder, events, *callbacks, **arguments)
    trainer.train(resume_from_checkpoint=resume)
    return fingerprint(trainer, events.losses), trainer


SCHEDULES: list[dict[str, Any]] = [
    {"lr_scheduler_type": "linear"},
    {"lr_scheduler_type": "constant"},
    {"lr_scheduler_type": "polynomial", "lr_scheduler_kwargs": {"lr_end": 1e-4}},
    {"lr_scheduler_type": "cosine_with_min_lr", "lr_scheduler_kwargs": {"min_lr": 1e-3}},
    {"lr_scheduler_type": "warmup_stable_decay", "lr_scheduler_kwargs": {"num_decay_steps": 4}, "warmup_steps": 0.2},
]


@pytest.mark.parametrize("schedule", SCHEDULES, ids=lambda item: item["lr_scheduler_type"])
def test_a_changed_learning_rate_and_max_steps_survive_a_resume(tmp_path: Path, schedule: dict[str, Any]) -> None:
    """Resumes once before the change, which is then applied again, and once from a checkpoint after the change."""
    new_values = {"learning_rate": 4e-3, "max_steps": 18}
    whole, trainer = run(tmp_path, ChangeAt(7, **new_values), **schedule)
    assert (trainer.state.global_step, len(whole.losses)) == (18, 18)

    before, _ = run(tmp_path, ChangeAt(7, **new_values), resume=tmp_path / "checkpoint-5", **schedule)
    after, _ = run(tmp_path, resume=tmp_path / "checkpoint-10", **{**schedule, **new_values})

    assert before == Fingerprint(whole.weights, whole.optimizer, whole.schedule, whole.rng, whole.losses[5:])
    assert after == Fingerprint(whole.weights, whole.optimizer, whole.schedule, whole.rng, whole.losses[10:])


def test_a_changed_learning_rate_replaces_the_initial_rate_of_the_schedule(tmp_path: Path) -> None:
    changing = ChangeAt(7, learning_rate=1e-3)

    _, trainer = run(tmp_path, changing, warmup_steps=0)

    rates = {row["step"]: row["learning_rate"] for row in trainer.state.log_history if "loss" in row}
    assert rates[7] == pytest.approx(1e-2 * 8 / 14)
    assert rates[8] == pytest.approx(1e-3 * 7 / 14)
    assert changing.result == ChangeResult({"learning_rate": (1e-2, 1e-3)})


def test_max_steps_can_be_lowered_or_raised_during_a_run(tmp_path: Path) -> None:
    _, sooner = run(tmp_path / "sooner", ChangeAt(4, max_steps=6))
    _, later = run(tmp_path / "later", ChangeAt(4, max_steps=30), max_steps=-1, num_train_epochs=1)

    assert sooner.state.global_step == 6
    assert (later.state.global_step, later.state.num_train_epochs) == (30, 5)
    assert later.state.epoch == pytest.approx(30 / 7)


def test_changed_intervals_apply_from_the_next_step(tmp_path: Path) -> None:
    changing = ChangeAt(4, logging_steps=3, eval_steps=0.5, save_steps=100)

    _, trainer = run(tmp_path, changing, eval_strategy="steps", eval_steps=2)

    logged = [row["step"] for row in trainer.state.log_history if "loss" in row]
    evaluated = [row["step"] for row in trainer.state.log_history if "eval_loss" in row]
    # The callback changes the intervals after step 4 has decided whether to log, evaluate and save.
    assert logged == [1, 2, 3, 4, 6, 9, 12]
    assert evaluated == [2, 4, 7, 14]
    assert sorted(path.name for path in tmp_path.glob("checkpoint-*")) == ["checkpoint-14"]


@pytest.mark.parametrize(("arguments", "new_values", "why"), [
    ({}, {"max_steps": 7}, "step 7 is already reached: use 8 or more"),
    ({}, {"eval_steps": 7}, "eval_strategy is 'no', so eval_steps has no effect"),
    ({}, {"seed": 7}, "seed cannot change during training; learning_rate, max_steps, "),
    ({}, {"learning_rate": {"main": 1.0}}, "there is one optimizer"),
    ({"lr_scheduler_type": "reduce_lr_on_plateau", "eval_strategy": "steps"}, {"learning_rate": 1.0},
     "reduce_lr_on_plateau sets the learning rate from the results of evaluations"),
])  # fmt: skip
def test_a_change_that_is_impossible_is_refused_with_the_reason(
    tmp_path: Path, arguments: dict[str, Any], new_values: dict[str, Any], why: str
) -> None:
    changing = ChangeAt(7, **new_values)
    quiet, _ = run(tmp_path, **arguments)

    report, _ = run(tmp_path, changing, **arguments)

    [reason] = changing.result.refused.values()
    assert reason.startswith(why)
    assert changing.result.values == {}
    assert report == quiet


def test_the_learning_rate_of_the_scripts_own_optimizer_cannot_be_changed(tmp_path: Path) -> None:
    import torch

    changing = ChangeAt(3, learning_rate=1.0, max_steps=20)
    trainer = a_trainer(tmp_path, changing)
    own = torch.optim.SGD(trainer.model.parameters(), lr=0.5)
    trainer.optimizer, trainer.lr_scheduler = own, torch.optim.lr_scheduler.StepLR(own, 5)

    trainer.train()

    assert changing.result.refused == {
        "learning_rate": "the schedule, StepLR, was not made from the arguments, so it does not follow learning_rate",
        "max_steps": "the schedule, StepLR, was not made from the arguments, and may end at the old max_steps: set "
        "max_steps to 14 or less",
    }


AUX_COSINE = NamedOptimizer("aux", AUX.params, "adam", {"lr": 5e-2}, loss="aux_loss", schedule="polynomial")


def codec(folder: Path, *callbacks: TrainerCallback, aux: NamedOptimizer = AUX_COSINE) -> Trainer:
    set_seed(7)
    data = [{"x": toy.regression(n=40)[at]["x"][:6]} for at in range(40)]
    arguments = TrainingArguments(
        str(folder), max_steps=10, per_device_train_batch_size=4, save_steps=5, logging_steps=1, disable_tqdm=True
    )
    trainer = Trainer(Codec(), arguments, train_dataset=data, optimizers=[MAIN, aux], callbacks=list(callbacks))
    for callback in callbacks:
        if isinstance(callback, ChangeAt):
            callback.trainer = trainer  # type: ignore[assignment]
    return trainer


def test_a_changed_rate_of_one_of_several_optimizers_survives_a_resume(tmp_path: Path) -> None:
    changing = ChangeAt(4, learning_rate={"aux": 1e-2}, max_steps=12)
    whole = codec(tmp_path, changing)
    whole.train()

    after = codec(tmp_path)
    begin_with(after, changing.wanted)
    after.train(resume_from_checkpoint=str(tmp_path / "checkpoint-5"))

    assert changing.result.values["learning_rate"] == ({"main": 1e-2, "aux": 5e-2}, {"aux": 1e-2})
    assert fingerprint(whole, []) == fingerprint(after, [])
    assert [row["main_learning_rate"] for row in whole.state.log_history[3:5]] == pytest.approx([1e-2, 9.7e-3], rel=0.1)


def test_a_new_learning_rate_must_name_one_of_several_optimizers(tmp_path: Path) -> None:
    numbers = itertools.count(1)
    wishes = [1.0, {"axu": 1.0}, {"main": 1.0, "aux": 1.0}]
    changes = [ChangeAt(next(numbers), learning_rate=wish) for wish in wishes]
    trainer = codec(tmp_path, *changes, StopAt(4), aux=AUX)

    trainer.train()

    assert [item.result.refused["learning_rate"] for item in changes] == [
        "there are 2 optimizers, main, aux: name one, as in {'main': 1.0}",
        "there is no optimizer 'axu'; did you mean 'aux'?",
        "the schedule of optimizer 'aux' is a StepLR, whose rate cannot be replaced: only a LambdaLR, "
        "such as Hugging Face's cosine schedule, allows it",
    ]
