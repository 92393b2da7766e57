"""Callbacks by name with the Trainer: their logs, the step at which they stop, and exact resumes."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from footplate.components import toy
from footplate.components.callbacks import Ema
from footplate.runtime.build import load
from footplate.trainer.arguments import TrainingArguments
from footplate.trainer.callbacks import TrainerCallback
from footplate.trainer.trainer import Trainer, set_seed
from tests.support.training import StopAt, digest, fingerprint


def callback(name: str, **args: Any) -> Any:
    return load("callbacks", name)(**args)


def a_trainer(folder: Path, *callbacks: Any, model: Any = None, **values: Any) -> Trainer:
    defaults: dict[str, Any] = {
        "max_steps": 10, "per_device_train_batch_size": 4, "gradient_accumulation_steps": 2, "learning_rate": 1e-2,
        "logging_steps": 1, "save_strategy": "no", "disable_tqdm": True, "use_cpu": True,
    }  # fmt: skip
    args = TrainingArguments(str(folder), **{**defaults, **values})
    set_seed(7)
    return Trainer(
        model or toy.mlp(hidden=16, dropout=0.2),
        args,
        train_dataset=toy.regression(n=50),
        eval_dataset=toy.regression(n=20, seed=1),
        callbacks=list(callbacks),
    )


def logs(trainer: Trainer) -> list[dict[str, Any]]:
    return [log for log in trainer.state.log_history if "loss" in log]


def test_the_learning_rate_of_every_parameter_group_is_logged_at_its_step(tmp_path: Path) -> None:
    trainer = a_trainer(tmp_path, callback("log_learning_rate"), weight_decay=0.1, warmup_steps=3)
    trainer.train()

    assert [log["learning_rate_group_0"] for log in logs(trainer)] == [log["learning_rate"] for log in logs(trainer)]
    assert all(log["learning_rate_group_0"] == log["learning_rate_group_1"] for log in logs(trainer))


def test_gradient_norms_of_layers_add_up_to_the_total_norm(tmp_path: Path) -> None:
    trainer = a_trainer(tmp_path, callback("gradient_norms"), max_grad_norm=0.0, logging_steps=2)
    trainer.train()

    assert len(logs(trainer)) == 5
    for log in logs(trainer):
        layers = {name: value for name, value in log.items() if name.startswith("grad_norm/")}
        assert list(layers) == ["grad_norm/layers.0", "grad_norm/layers.3", "grad_norm/layers.6"]
        assert math.hypot(*layers.values()) == pytest.approx(log["grad_norm"], rel=1e-5)


def test_gradient_norms_are_in_the_log_of_the_first_step_if_no_other_step_is_logged(tmp_path: Path) -> None:
    trainer = a_trainer(
        tmp_path, callback("gradient_norms", depth=1), max_grad_norm=0.0, logging_strategy="no", logging_first_step=True
    )
    trainer.train()
    assert [log["step"] for log in logs(trainer) if "grad_norm/layers" in log] == [1]


def test_gradient_norms_can_be_logged_for_larger_parts_of_the_model(tmp_path: Path) -> None:
    trainer = a_trainer(tmp_path, callback("gradient_norms", depth=1), max_grad_norm=0.0, max_steps=1)
    trainer.train()
    assert logs(trainer)[0]["grad_norm/layers"] == pytest.approx(logs(trainer)[0]["grad_norm"], rel=1e-5)


def test_early_stopping_follows_the_loss_if_no_metric_is_named(tmp_path: Path) -> None:
    trainer = a_trainer(
        tmp_path, callback("early_stopping", patience=2, threshold=100.0), eval_strategy="steps", eval_steps=1
    )
    trainer.train()
    assert trainer.state.global_step == 3


class Diverges(torch.nn.Module):
    def __init__(self, at: int) -> None:
        super().__init__()
        self.weight, self.at, self.calls = torch.nn.Parameter(torch.ones(1)), at, 0

    def forward(self, x: torch.Tensor, labels: torch.Tensor | None = None) -> dict[str, torch.Tensor]:
        self.calls += 1
        loss = self.weight.sum() * (math.nan if self.calls >= self.at else 1.0)
        return {"loss": loss, "logits": x}


def test_stop_on_nan_ends_a_run_after_the_given_number_of_nan_steps(tmp_path: Path) -> None:
    trainer = a_trainer(
        tmp_path, callback("stop_on_nan", steps=3), model=Diverges(5), gradient_accumulation_steps=1, logging_steps=2
    )
    with pytest.raises(FloatingPointError, match="in 4 steps up to step 8, and stop_on_nan fails the job after 3"):
        trainer.train()


def test_the_nan_count_of_stop_on_nan_survives_a_resume(tmp_path: Path) -> None:
    values: dict[str, Any] = {"gradient_accumulation_steps": 1, "save_strategy": "steps", "save_steps": 100}
    a_trainer(tmp_path, callback("stop_on_nan", steps=4), StopAt(6), model=Diverges(5), **values).train()
    resumed = a_trainer(tmp_path, callback("stop_on_nan", steps=4), model=Diverges(1), **values)
    with pytest.raises(FloatingPointError, match="in 4 steps up to step 8"):
        resumed.train(resume_from_checkpoint=True)


def averaged_by_hand(weights: list[dict[str, torch.Tensor]], decay: float) -> dict[str, torch.Tensor]:
    average = {name: value.clone() for name, value in weights[0].items()}
    for count, now in enumerate(weights[1:], start=1):
        share = 1 - min(decay, (1 + count) / (10 + count))
        for name, value in now.items():
            average[name] += share * (value - average[name])
    return average


class Weights(TrainerCallback):
    """Records the model's weights before the first step and after each."""

    def __init__(self) -> None:
        self.history: list[dict[str, torch.Tensor]] = []

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._look(kwargs["model"])

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._look(kwargs["model"])

    def _look(self, model: torch.nn.Module) -> None:
        self.history.append({name: value.detach().clone() for name, value in model.named_parameters()})


def test_weight_averages_become_the_model_and_do_not_change_training(tmp_path: Path) -> None:
    watched, evaluates = Weights(), {"eval_strategy": "steps", "eval_steps": 3}
    plain = a_trainer(tmp_path / "plain", **evaluates)
    plain.train()
    trainer = a_trainer(tmp_path / "ema", callback("ema", decay=0.5), watched, **evaluates)
    trainer.train()

    assert [log["loss"] for log in logs(trainer)] == [log["loss"] for log in logs(plain)]
    assert digest(watched.history[-1]) == digest(dict(plain.model.named_parameters()))
    for name, value in averaged_by_hand(watched.history, 0.5).items():
        torch.testing.assert_close(trainer.model.state_dict()[name], value)


def test_evaluations_use_the_averaged_weights(tmp_path: Path) -> None:
    trainer = a_trainer(tmp_path, callback("ema", decay=0.9), eval_strategy="steps", eval_steps=10)
    trainer.train()
    last = [log["eval_loss"] for log in trainer.state.log_history if "eval_loss" in log][-1]

    assert trainer.evaluate()["eval_loss"] == last
    assert trainer.evaluate()["eval_loss"] == last


@pytest.mark.parametrize("in_background", [False, True])
def test_resumed_weight_averages_are_bit_identical(tmp_path: Path, in_background: bool) -> None:
    saves = {"save_strategy": "steps", "save_steps": 3, "save_in_background": in_background}
    whole = a_trainer(tmp_path / "whole", callback("ema"), **saves)
    whole.train()
    first = a_trainer(tmp_path / "cut", callback("ema"), StopAt(5), **saves)
    first.train()
    resumed = a_trainer(tmp_path / "cut", callback("ema"), **saves)
    resumed.train(resume_from_checkpoint=True)

    assert fingerprint(resumed, []) == fingerprint(whole, [])
    weights = load_file(tmp_path / "cut" / "checkpoint-5" / "model.safetensors")
    assert digest(weights) != digest(first.model.state_dict()), "a checkpoint has the weights, not their averages"


def test_the_averages_of_the_best_model_are_loaded_at_the_end(tmp_path: Path) -> None:
    trainer = a_trainer(
        tmp_path, callback("ema", decay=0.9), eval_strategy="steps", eval_steps=2, save_strategy="steps", save_steps=2,
        load_best_model_at_end=True, learning_rate=0.2,
    )  # fmt: skip
    trainer.train()

    best = min(log["eval_loss"] for log in trainer.state.log_history if "eval_loss" in log)
    assert trainer.evaluate()["eval_loss"] == best == trainer.state.best_metric


def test_averaging_starts_at_a_checkpoint_without_averages(tmp_path: Path) -> None:
    saves = {"save_strategy": "steps", "save_steps": 5}
    a_trainer(tmp_path, StopAt(5), **saves).train()
    trainer = a_trainer(tmp_path, callback("ema"), **saves)
    trainer.train(resume_from_checkpoint=True)

    state = json.loads((tmp_path / "checkpoint-10" / "trainer_state.json").read_text())
    assert state["stateful_callbacks"]["Ema"]["attributes"]["updates"] == 5


def test_averages_of_half_precision_weights_are_kept_in_float32() -> None:
    ema, model = Ema(decay=0.99, warmup=False), torch.nn.Linear(1, 1).bfloat16()
    args: Any = TrainingArguments("unused", use_cpu=True)
    trained: Any = type("State", (), {"global_step": 0})()
    ema.on_train_begin(args, trained, None, model=model)  # type: ignore[arg-type]
    with torch.no_grad():
        model.weight.add_(1.0)
    before = ema.average["weight"].clone()

    ema.on_optimizer_step(args, trained, None)  # type: ignore[arg-type]

    assert ema.average["weight"].dtype is torch.float32
    torch.testing.assert_close(ema.average["weight"], before + 0.01 * (model.weight.float() - before))
