"""Tests a search of hyperparameters, which trains every trial and finds the same best run as Hugging Face's."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import optuna
import pytest
import torch
from torch import nn

from footplate.components import toy
from footplate.contract.errors import NotAvailableYet
from footplate.trainer.arguments import TrainingArguments
from footplate.trainer.search import BestRun, default_compute_objective
from footplate.trainer.trainer import Trainer
from tests.trainer.sides import on_both

optuna.logging.set_verbosity(optuna.logging.ERROR)


def space(trial: Any) -> dict[str, Any]:
    return {
        "learning_rate": trial.suggest_float("learning_rate", 1e-4, 1e-1, log=True),
        "per_device_train_batch_size": trial.suggest_categorical("per_device_train_batch_size", [4, 16]),
        "weight_decay": trial.suggest_int("weight_decay", 0, 1),
    }


class Net(nn.Module):
    def __init__(self, hidden: int = 8) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(8, hidden), nn.Tanh(), nn.Linear(hidden, 4))

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        logits = self.net(x)
        return {"loss": nn.functional.mse_loss(logits, labels), "logits": logits}


def a_net() -> Net:
    return Net()


def arguments(kind: Any, folder: Path, **values: Any) -> Any:
    defaults: dict[str, Any] = {
        "max_steps": 6, "eval_strategy": "steps", "eval_steps": 3, "save_strategy": "no", "logging_steps": 3,
        "report_to": "none", "disable_tqdm": True, "use_cpu": True, "dataloader_pin_memory": False,
    }  # fmt: skip
    return kind(str(folder), **{**defaults, **values})


def sampler() -> Any:
    return optuna.samplers.RandomSampler(seed=3)


def a_trainer(folder: Path, model_init: Any = a_net, **values: Any) -> Trainer:
    return Trainer(
        args=arguments(TrainingArguments, folder, **values),
        model_init=model_init,
        train_dataset=toy.regression(n=48),
        eval_dataset=toy.regression(n=20, seed=1),
    )


def test_a_search_finds_the_same_best_run_as_in_transformers(tmp_path: Path) -> None:
    def script(side: Any, folder: Path) -> Any:
        trainer = side.Trainer(
            args=arguments(side.TrainingArguments, folder),
            model_init=a_net,
            train_dataset=list(toy.regression(n=48)),
            eval_dataset=list(toy.regression(n=20, seed=1)),
        )
        best = trainer.hyperparameter_search(hp_space=space, n_trials=4, sampler=sampler())
        trainer.model = trainer.model if trainer.model is not None else Net()
        return trainer, {"id": best.run_id, "objective": best.objective, **best.hyperparameters}

    ours, theirs = on_both(tmp_path, script)

    assert ours.returned == theirs.returned


def test_every_trial_starts_from_the_original_arguments(tmp_path: Path) -> None:
    trials: list[tuple[float, int]] = []

    class Watch(Trainer):
        def get_train_dataloader(self) -> Any:
            trials.append((self.args.learning_rate, self._train_batch_size))
            return super().get_train_dataloader()

    trainer = Watch(
        args=arguments(TrainingArguments, tmp_path, learning_rate=0.5),
        model_init=a_net,
        train_dataset=toy.regression(n=48),
        eval_dataset=toy.regression(n=8),
    )

    def sometimes(trial: Any) -> dict[str, Any]:
        if trial.number == 1:
            return {"per_device_train_batch_size": trial.suggest_categorical("per_device_train_batch_size", [4])}
        return {"learning_rate": trial.suggest_float("learning_rate", 0.1, 0.1)}

    trainer.hyperparameter_search(sometimes, n_trials=3)

    assert trials == [(0.1, 8), (0.5, 4), (0.1, 8)]
    assert (trainer.args.learning_rate, trainer.args.train_batch_size, trainer._train_batch_size) == (0.5, 8, 8)
    assert trainer.args.output_dir == str(tmp_path)


def test_a_trial_trains_with_its_label_smoothing(tmp_path: Path) -> None:
    data = toy.classification(n=32)
    args = arguments(TrainingArguments, tmp_path)
    trainer = Trainer(args=args, model_init=toy.mlp, train_dataset=data, eval_dataset=data)
    before = trainer.label_smoother
    losses: list[float] = []

    def factor(trial: Any) -> dict[str, Any]:
        value = 0.5 * trial.number
        return {"label_smoothing_factor": trial.suggest_float("label_smoothing_factor", value, value)}

    def loss(metrics: dict[str, float]) -> float:
        losses.append(metrics["eval_loss"])
        return losses[-1]

    trainer.hyperparameter_search(factor, loss, n_trials=2)

    assert losses[0] != losses[2]
    assert trainer.label_smoother is before


def test_each_trial_has_a_folder_with_the_name_of_the_trial(tmp_path: Path) -> None:
    trainer = a_trainer(tmp_path, save_strategy="steps", save_steps=3)
    trainer.hyperparameter_search(space, n_trials=2, sampler=sampler())

    assert sorted(path.name for path in tmp_path.iterdir()) == ["run-0", "run-1"]
    assert (tmp_path / "run-1" / "checkpoint-6" / "trainer_state.json").exists()
    assert (trainer.state.is_hyper_param_search, trainer.state.trial_name) == (True, "run-1")
    assert set(trainer.state.trial_params or {}) == {"learning_rate", "per_device_train_batch_size", "weight_decay"}
    trainer.hyperparameter_search(space, n_trials=1, hp_name=lambda trial: f"try{trial.number}", sampler=sampler())
    assert (tmp_path / "try0" / "checkpoint-6").exists()


def test_model_init_may_build_the_model_from_the_trial(tmp_path: Path) -> None:
    hidden_sizes: list[Any] = []

    def for_trial(trial: Any) -> Net:
        hidden_sizes.append(None if trial is None else trial.params["hidden"])
        return Net(hidden_sizes[-1] or 8)

    trainer = a_trainer(tmp_path, for_trial)
    best = trainer.hyperparameter_search(
        lambda trial: {"hidden": trial.suggest_int("hidden", 2, 5)}, n_trials=3, sampler=sampler()
    )

    assert isinstance(best, BestRun)
    assert hidden_sizes[0] is None
    assert set(hidden_sizes[1:]) <= {2, 3, 4, 5}
    assert trainer.model.net[0].out_features == hidden_sizes[-1]  # type: ignore[index,union-attr]


def test_a_pruned_trial_ends_early_and_leaves_no_training_open(tmp_path: Path) -> None:
    class Never(optuna.pruners.BasePruner):
        def prune(self, study: Any, trial: Any) -> bool:
            return bool(trial.number > 0)

    trainer = a_trainer(tmp_path)
    best = trainer.hyperparameter_search(space, n_trials=3, sampler=sampler(), pruner=Never())

    assert isinstance(best, BestRun)
    assert best.run_id == "0"
    assert trainer.state.global_step == 3
    assert not trainer.is_in_train


def test_a_search_with_several_objectives_returns_several_best_runs(tmp_path: Path) -> None:
    result = a_trainer(tmp_path).hyperparameter_search(
        space,
        compute_objective=lambda metrics: (metrics["eval_loss"], metrics["epoch"]),
        n_trials=3,
        direction=["minimize", "maximize"],
        sampler=sampler(),
    )

    assert isinstance(result, list)
    assert all(isinstance(item.objective, list) for item in result)


def test_a_trial_without_evaluations_is_evaluated_at_its_end(tmp_path: Path) -> None:
    best = a_trainer(tmp_path, eval_strategy="no").hyperparameter_search(space, n_trials=1, sampler=sampler())

    assert isinstance(best, BestRun)
    assert isinstance(best.objective, float)
    assert best.objective > 0


def test_suggested_arguments_that_are_unknown_or_invalid_are_refused(tmp_path: Path) -> None:
    trainer = a_trainer(tmp_path)
    with pytest.raises(ValueError, match=r"suggests learning_rte, .* did you mean 'learning_rate'.*trial.params"):
        trainer.hyperparameter_search(lambda trial: {"learning_rte": 1.0}, n_trials=1)
    with pytest.raises(ValueError, match="learning_rate"):
        trainer.hyperparameter_search(lambda trial: {"learning_rate": -1.0}, n_trials=1)
    assert trainer.args.learning_rate == 5e-5


def test_an_unsupported_search_is_refused_with_the_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(NotAvailableYet, match="searching with ray"):
        a_trainer(tmp_path).hyperparameter_search(space, backend="ray")
    with pytest.raises(ValueError, match="n_jobs"):
        a_trainer(tmp_path).hyperparameter_search(space, n_jobs=2)
    trainer = Trainer(Net(), arguments(TrainingArguments, tmp_path, eval_strategy="no"))
    with pytest.raises(RuntimeError, match="through a model_init"):
        trainer.hyperparameter_search(space)
    with pytest.raises(RuntimeError, match="0 or 1 argument"):
        a_trainer(tmp_path, lambda a, b: Net())
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(ImportError, match=r"pip install 'footplate\[search\]'"):
        a_trainer(tmp_path).hyperparameter_search(space)


def test_the_objective_is_the_loss_or_the_sum_of_metrics() -> None:
    from transformers.trainer_utils import default_compute_objective as theirs

    speed = {"eval_runtime": 1.0, "eval_samples_per_second": 2.0, "epoch": 3.0}
    for metrics in ({"eval_loss": 0.5, **speed}, {"eval_loss": 0.5, "eval_f1": 0.25, "eval_accuracy": 0.5, **speed}):
        assert default_compute_objective(metrics) == theirs(metrics)
    assert default_compute_objective({"eval_loss": 0.5, "eval_loss_exact": 0.6, **speed}) == 0.5
    counts = {"eval_nan_batches": 2, "num_input_tokens_seen": 640, "eval_mem_cpu_peaked_delta": 4096}
    assert default_compute_objective({"eval_loss": 0.5, **counts, **speed}) == 0.5
    with pytest.raises(ValueError, match="pass compute_objective"):
        default_compute_objective({"epoch": 1.0})
