"""Runs with random arguments that are killed at a random step. The resumed run equals the undisturbed one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest

from footplate.components import toy
from footplate.trainer.arguments import TrainingArguments
from footplate.trainer.callbacks import TrainerCallback
from footplate.trainer.trainer import Trainer, set_seed
from tests.support.training import Fingerprint, fingerprint

CHOICES: dict[str, tuple[Any, ...]] = {
    "per_device_train_batch_size": (1, 3, 5, 30),
    "gradient_accumulation_steps": (2, 3, 7),
    "num_train_epochs": (1, 1.5, 2.7),
    "max_steps": (5, 9, 12),
    "lr_scheduler_type": ("cosine", "constant_with_warmup", "inverse_sqrt", "reduce_lr_on_plateau", "greedy"),
    "warmup_steps": (0, 3, 0.2),
    "optim": ("sgd", "adafactor", "schedule_free_adamw"),
    "max_grad_norm": (0, 0.3),
    "eval_strategy": ("steps", "epoch"),
    "eval_steps": (1, 2, 0.4),
    "eval_delay": (1, 2),
    "save_strategy": ("steps", "epoch"),
    "save_steps": (1, 2, 3),
    "save_total_limit": (2,),
    "save_in_background": (True,),
    "train_sampling_strategy": ("sequential",),
    "dataloader_drop_last": (True,),
    "data_seed": (3,),
    "bf16": (True,),
    "logging_strategy": ("epoch", "no"),
}


class Killed(Exception):
    pass


class KillAt(TrainerCallback):
    def __init__(self, step: int) -> None:
        self.step = step

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step == self.step:
            raise Killed


class EveryFourSteps(TrainerCallback):
    """Ends each epoch after four steps. Raises Killed at step `kill_at`, after its checkpoint."""

    def __init__(self, kill_at: int | None = None) -> None:
        self.kill_at = kill_at

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        control.should_epoch_stop = state.global_step % 4 == 0

    def on_epoch_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step == self.kill_at:
            raise Killed


def random_arguments(dice: Random) -> dict[str, Any]:
    values = {name: dice.choice(choices) for name, choices in CHOICES.items() if dice.random() < 0.4}
    values.setdefault("save_steps", 2)
    if values.get("lr_scheduler_type") in ("reduce_lr_on_plateau", "greedy"):
        values |= {"eval_strategy": "epoch", "metric_for_best_model": "loss"}
    if values.get("optim") == "schedule_free_adamw":
        values |= {"lr_scheduler_type": "constant", "warmup_steps": 3}
    if values.get("dataloader_drop_last"):
        values["per_device_train_batch_size"] = 3
    return values


def train(
    folder: Path, arguments: dict[str, Any], *callbacks: Any, resume: bool = False
) -> tuple[Trainer, Fingerprint]:
    set_seed(7)
    args = TrainingArguments(str(folder), disable_tqdm=True, **arguments)
    trainer = Trainer(
        toy.mlp(hidden=4, dropout=0.2), args, train_dataset=toy.regression(n=44),
        eval_dataset=toy.regression(n=16, seed=1), callbacks=list(callbacks),
    )  # fmt: skip
    trainer.train(resume_from_checkpoint=resume)
    return trainer, replace(fingerprint(trainer, []), losses=evaluations(trainer))


def evaluations(trainer: Trainer) -> list[Any]:
    history = [row for row in trainer.state.log_history if "eval_loss" in row]
    return [(row["step"], row["eval_loss"]) for row in history]


SHORT = (8, 17, 21)
"""Runs that continue after the last step of an epoch, whose evaluation is still to come."""
SEEDS = [*SHORT, *(pytest.param(seed, marks=pytest.mark.matrix) for seed in range(100) if seed not in SHORT)]


@pytest.mark.parametrize("seed", SEEDS)
def test_a_random_run_that_was_killed_resumes_bit_identically(tmp_path: Path, seed: int) -> None:
    dice = Random(seed)
    arguments = random_arguments(dice)
    trainer, undisturbed = train(tmp_path / "undisturbed", arguments)
    steps = trainer.state.global_step
    step = dice.randrange(1, steps) if steps > 1 else 0
    with pytest.raises(Killed):
        train(tmp_path / "killed", arguments, KillAt(step))
    has_checkpoint = any((tmp_path / "killed").glob("checkpoint-*"))

    _, resumed = train(tmp_path / "killed", arguments, resume=has_checkpoint)

    assert resumed == undisturbed, f"killed at step {step} of {steps} with {arguments}"


def test_a_run_killed_where_a_callback_ends_an_epoch_continues_with_that_end(tmp_path: Path) -> None:
    arguments = {"per_device_train_batch_size": 4, "save_steps": 4, "eval_strategy": "epoch"}
    _, undisturbed = train(tmp_path / "undisturbed", arguments, EveryFourSteps())
    with pytest.raises(Killed):
        train(tmp_path / "killed", arguments, EveryFourSteps(kill_at=8))

    _, resumed = train(tmp_path / "killed", arguments, EveryFourSteps(), resume=True)

    assert [step for step, _ in undisturbed.losses] == [4, 8, 12]
    assert resumed == undisturbed
