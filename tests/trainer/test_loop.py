"""Tests the length of a run, its log history, and data that is empty or has no length."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import IterableDataset

from footplate.components import toy
from footplate.contract.errors import DatasetError
from footplate.trainer.arguments import TrainingArguments
from footplate.trainer.evaluation import OwnEvaluation
from footplate.trainer.trainer import Trainer, set_seed
from tests.support.training import StopAt, digest


def a_trainer(folder: Path, data: Any = None, model: nn.Module | None = None, **values: Any) -> Trainer:
    args = TrainingArguments(str(folder), **{"save_strategy": "no", "disable_tqdm": True, **values})
    return Trainer(model or toy.mlp(), args, train_dataset=toy.regression(n=50) if data is None else data)


def test_the_log_history_has_the_names_of_transformers(tmp_path: Path) -> None:
    trainer = a_trainer(tmp_path, max_steps=6, logging_steps=0.5, logging_first_step=True, learning_rate=1e-3)

    output = trainer.train()

    first, third, sixth, run = trainer.state.log_history
    assert [item["step"] for item in (first, third, sixth, run)] == [1, 3, 6, 6]
    assert set(first) == {"loss", "grad_norm", "learning_rate", "epoch", "step"}
    assert first["learning_rate"] == 1e-3
    assert {"train_runtime", "train_samples_per_second", "train_steps_per_second", "train_loss"} < set(run)
    assert output.training_loss == pytest.approx((first["loss"] + 2 * third["loss"] + 3 * sixth["loss"]) / 6)
    assert output.metrics["train_loss"] == output.training_loss


def test_a_learning_rate_that_is_a_tensor_is_logged_as_in_its_step(tmp_path: Path) -> None:
    """The optimizers of torchao make the rate a tensor, which the schedule then changes in place."""
    args = TrainingArguments(str(tmp_path), max_steps=4, logging_steps=1, save_strategy="no", disable_tqdm=True)
    optimizer = (torch.optim.SGD, {"lr": torch.tensor(0.5)})

    trainer = Trainer(toy.mlp(), args, train_dataset=toy.regression(n=50), optimizer_cls_and_kwargs=optimizer)
    trainer.train()

    logs = trainer.state.log_history[:4]
    assert [log["learning_rate"] for log in logs] == [0.5, 0.375, 0.25, 0.125]


def test_a_schedule_of_a_script_that_follows_a_metric_follows_the_loss_by_default(tmp_path: Path) -> None:
    args = TrainingArguments(
        str(tmp_path), max_steps=3, eval_strategy="steps", eval_steps=1, save_strategy="no", disable_tqdm=True
    )
    model, data = toy.mlp(), toy.regression(n=50)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=9)

    trainer = Trainer(model, args, train_dataset=data, eval_dataset=data, optimizers=(optimizer, schedule))
    trainer.train()

    assert schedule.num_bad_epochs == 2
    assert schedule.best == trainer.evaluate()["eval_loss"]


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        return iter(toy.regression(n=20))


def test_a_stream_without_length_is_read_again_until_the_steps_are_done(tmp_path: Path) -> None:
    assert a_trainer(tmp_path, Stream(), max_steps=7).train().global_step == 7


def test_a_stream_needs_max_steps(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="set max_steps"):
        a_trainer(tmp_path, Stream()).train()


def test_an_empty_training_set_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match="has no batch"):
        a_trainer(tmp_path, []).train()


def test_a_dataset_without_any_column_that_forward_accepts_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"forward takes .*x.* only: pixels"):
        a_trainer(tmp_path, [{"pixels": torch.zeros(8)}] * 8).train()


@pytest.mark.parametrize("loads_best", [True, False])
def test_a_run_of_a_schedule_free_optimizer_ends_with_averaged_weights(tmp_path: Path, loads_best: bool) -> None:
    """A later evaluation must not average the weights again, because these may be those of the best model."""
    often: dict[str, Any] = {"eval_strategy": "steps", "eval_steps": 4, "save_strategy": "steps", "save_steps": 4}
    args = TrainingArguments(
        str(tmp_path), max_steps=12, optim="schedule_free_adamw", learning_rate=0.05, lr_scheduler_type="constant",
        load_best_model_at_end=loads_best, disable_tqdm=True, **often,
    )  # fmt: skip
    data = toy.classification(n=64)
    trainer = Trainer(toy.mlp(), args, train_dataset=data, eval_dataset=data, callbacks=[StopAt(7)])
    trainer.train()
    weights = digest(trainer.model.state_dict())

    trainer.evaluate()

    assert digest(trainer.model.state_dict()) == weights


class Mode(OwnEvaluation):
    """An evaluation set that computes a metric of its own, as the tasks of lm-eval do."""

    def __len__(self) -> int:
        return 1

    def __getitem__(self, index: int) -> Any:
        return {}

    def check(self, trainer: Any) -> None: ...

    def metrics(self, trainer: Any) -> dict[str, float]:
        return {"averaged": float(not trainer.optimizer.param_groups[0]["train_mode"])}


def test_an_evaluation_set_with_metrics_of_its_own_evaluates_averaged_weights(tmp_path: Path) -> None:
    args = TrainingArguments(
        str(tmp_path), max_steps=4, eval_strategy="steps", eval_steps=2, optim="schedule_free_adamw",
        lr_scheduler_type="constant", disable_tqdm=True,
    )  # fmt: skip
    trainer = Trainer(toy.mlp(), args, train_dataset=toy.classification(n=64), eval_dataset=Mode())

    trainer.train()

    assert [entry["averaged"] for entry in trainer.state.log_history if "averaged" in entry] == [1.0, 1.0]


def test_a_second_call_of_train_continues_from_the_weights(tmp_path: Path) -> None:
    set_seed(0)
    trainer = a_trainer(tmp_path, num_train_epochs=3, learning_rate=1e-2)

    first, second = trainer.train(), trainer.train()

    assert second.training_loss < first.training_loss
    assert second.global_step == first.global_step


def test_a_trainer_needs_exactly_one_of_model_and_model_init(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="a model or a model_init"):
        Trainer(args=TrainingArguments(str(tmp_path)))
    with pytest.raises(ValueError, match="a model or a model_init"):
        Trainer(toy.mlp(), TrainingArguments(str(tmp_path)), model_init=toy.mlp)


def test_a_collator_that_returns_no_batch_is_named_before_the_model_is_called(tmp_path: Path) -> None:
    def junk(features: Any) -> Any:
        return [features]

    trainer = a_trainer(tmp_path)
    trainer.data_collator = junk
    with pytest.raises(TypeError, match=r"the collator .*junk returned list.*return a dict"):
        trainer.train()


class WithBackbone(nn.Module):
    """A user's module with a backbone in eval mode, which is the mode of pretrained models after loading."""

    def __init__(self) -> None:
        super().__init__()
        self.backbone = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5)).eval()
        self.head = nn.Linear(8, 4)
        self.was_training: list[bool] = []

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        self.was_training.append(self.backbone.training)
        return {"logits": self.head(self.backbone(x))}


def test_a_submodule_in_eval_mode_is_trained_in_train_mode(tmp_path: Path) -> None:
    model = WithBackbone()
    trainer = a_trainer(tmp_path, max_steps=2, model=model)

    trainer.train()

    assert model.training, "the outer model was in train mode from the beginning"
    assert model.was_training == [True, True]


def test_the_train_method_of_an_optimizer_is_called_before_its_first_step(tmp_path: Path) -> None:
    class Told(torch.optim.SGD):
        is_training = False

        def train(self) -> None:
            self.is_training = True

        def step(self, *args: Any) -> Any:  # type: ignore[override]
            assert self.is_training, "step() was called before train()"
            return super().step(*args)

    trainer = a_trainer(tmp_path, max_steps=2)
    trainer.optimizer = Told(trainer.model.parameters(), lr=0.1)

    assert trainer.train().global_step == 2


def test_the_previous_model_of_model_init_is_freed(tmp_path: Path) -> None:
    model_refs: list[weakref.ref[nn.Module]] = []

    def make() -> nn.Module:
        model = toy.mlp()
        model_refs.append(weakref.ref(model))
        return model  # type: ignore[no-any-return]

    args = TrainingArguments(str(tmp_path), max_steps=1, save_strategy="no", disable_tqdm=True)
    trainer = Trainer(model_init=make, args=args, train_dataset=toy.regression(n=16))
    for _ in range(3):
        trainer.train()
    gc.collect()

    assert [instance() is trainer.model for instance in model_refs] == [False, False, False, True]
    assert [instance() for instance in model_refs[:-1]] == [None, None, None]


def test_a_second_run_starts_with_the_original_batch_size_after_out_of_memory(tmp_path: Path) -> None:
    class Small(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.line = nn.Linear(8, 4)

        def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
            if len(x) > 2:
                raise torch.OutOfMemoryError("CUDA out of memory.")
            return {"logits": self.line(x)}

    trainer = a_trainer(tmp_path, model=Small(), num_train_epochs=1, auto_find_batch_size=True)

    assert [trainer.train().global_step for _ in range(2)] == [7, 7]
    assert trainer.get_total_train_batch_size(trainer.args) == 8
