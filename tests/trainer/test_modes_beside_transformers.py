"""Train mode and eval mode are those of `transformers.Trainer`: at every event, after `evaluate` and `predict`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

import footplate
from footplate.components import toy
from footplate.trainer.arguments import TrainingArguments
from footplate.trainer.callbacks import EVENTS, TrainerCallback
from footplate.trainer.trainer import Trainer
from tests.trainer.sides import arguments, bert, sentences, tokenizer


def modes_of(side: Any, folder: Path, **more: Any) -> list[Any]:
    """Trains with dropout. Returns the model's mode in each event, and its outputs after evaluations."""
    transformers.set_seed(7)
    modes: list[Any] = []

    class Modes(side.TrainerCallback):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            for event in EVENTS:
                setattr(self, event, self._note(event))

        def _note(self, event: str) -> Any:
            return lambda args, state, control, model=None, **kwargs: modes.append((event, model.training))

    class Logging(side.Trainer):  # type: ignore[misc, name-defined]
        def log(self, logs: dict[str, float], *args: Any, **kwargs: Any) -> None:
            modes.append(("log", self.model.training))
            super().log(logs, *args, **kwargs)

    rows = [{"input_ids": sentence, "label": sentence[0] % 3} for sentence in sentences()]
    model = bert("BertForSequenceClassification", num_labels=3)
    model.bert.eval()  # like a pretrained part of a user's own module
    trainer = Logging(
        model,
        arguments(side, folder, **more),
        train_dataset=rows,
        eval_dataset=rows[:7],
        processing_class=tokenizer(),
        callbacks=[Modes()],
    )
    model.register_forward_pre_hook(
        lambda module, inputs: modes.append(("forward", {item.training for item in module.modules()}))
    )
    words = {"input_ids": torch.tensor([rows[0]["input_ids"]])}
    trainer.train()
    modes.append(("after train", model.training))
    trainer.evaluate()
    modes.append(("after evaluate", model.training, model(**words).logits.tolist()))
    trainer.train()
    trainer.predict(rows[7:12])
    modes.append(("after predict", model.training, model(**words).logits.tolist()))
    return modes


@pytest.mark.parametrize(
    "more",
    [
        {"eval_strategy": "steps", "eval_steps": 2, "max_steps": 5},
        {"eval_strategy": "epoch", "eval_on_start": True, "num_train_epochs": 1, "logging_steps": 2},
    ],
)
def test_a_script_has_the_same_modes_and_outputs_as_under_transformers(tmp_path: Path, more: dict[str, Any]) -> None:
    ours = modes_of(footplate, tmp_path / "ours", **more)

    assert ("on_evaluate", False) in ours
    assert ours == modes_of(transformers, tmp_path / "theirs", **more)


def test_an_own_training_step_that_calls_super_runs_in_train_mode(tmp_path: Path) -> None:
    """Some subclasses generate in eval mode before they call super()."""
    modes: list[bool] = []

    class Generating(Trainer):
        def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> Any:
            self.model.eval()
            return super().training_step(model, inputs, num_items_in_batch)

        def compute_loss(self, model: Any, *args: Any, **kwargs: Any) -> Any:
            modes.append(self.model.training)
            return super().compute_loss(model, *args, **kwargs)

    args = TrainingArguments(str(tmp_path), max_steps=2, save_strategy="no", disable_tqdm=True, use_cpu=True)

    Generating(toy.mlp(), args, train_dataset=toy.classification(n=32)).train()

    assert modes == [True, True]


class TrainsAgain(TrainerCallback):
    """Sets train mode after an evaluation, like callbacks that generate samples."""

    def on_evaluate(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
        model.train()


def test_an_optimizer_with_averaged_weights_continues_after_a_callback_sets_train(tmp_path: Path) -> None:
    args = TrainingArguments(
        str(tmp_path), max_steps=4, eval_strategy="steps", eval_steps=2, optim="schedule_free_adamw",
        lr_scheduler_type="constant", save_strategy="no", disable_tqdm=True, use_cpu=True,
    )  # fmt: skip
    data = toy.classification(n=32)

    trainer = Trainer(toy.mlp(), args, train_dataset=data, eval_dataset=data, callbacks=[TrainsAgain()])

    assert trainer.train().global_step == 4
