"""Tests evaluation: streaming metrics, the user's own metrics, several datasets, and predictions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
import transformers
from torch import nn

from footplate.components import toy
from footplate.contract.errors import UnknownComponent
from footplate.trainer.arguments import TrainingArguments
from footplate.trainer.metrics.choose import make_metric
from footplate.trainer.trainer import Trainer
from tests.trainer.sides import arguments, common, gpt, on_both, sentences


def a_trainer(folder: Path, model: Any = None, **options: Any) -> Trainer:
    values = {"max_steps": 4, "save_strategy": "no", "disable_tqdm": True, **options.pop("values", {})}
    options.setdefault("eval_dataset", toy.classification(n=50, seed=1))
    return Trainer(
        model or toy.mlp(), TrainingArguments(str(folder), **values), train_dataset=toy.classification(n=64), **options
    )


def test_streaming_metrics_equal_those_over_all_predictions(tmp_path: Path) -> None:
    def over_all(prediction: Any) -> dict[str, Any]:
        logits, labels = prediction
        assert logits.shape == (50, 4)
        return {"all_accuracy": (logits.argmax(-1) == labels).mean()}

    trainer = a_trainer(tmp_path, metrics=["accuracy", "f1", "perplexity"], compute_metrics=over_all)

    metrics = trainer.evaluate()

    assert metrics["eval_accuracy"] == pytest.approx(metrics["eval_all_accuracy"])
    assert metrics["eval_perplexity"] == pytest.approx(numpy.exp(metrics["eval_loss"]), rel=1e-4)
    assert isinstance(metrics["eval_all_accuracy"], float)
    assert {"eval_runtime", "eval_samples_per_second", "eval_steps_per_second"} <= set(metrics)


def test_predictions_are_kept_only_for_compute_metrics(tmp_path: Path) -> None:
    trainer = a_trainer(tmp_path, metrics=["accuracy"])

    output = trainer.evaluation_loop(trainer.get_eval_dataloader(), "Evaluation", prediction_loss_only=True)

    assert output.predictions is None
    assert "eval_accuracy" in output.metrics


def test_predictions_have_the_order_of_the_data_if_training_groups_by_length(tmp_path: Path) -> None:
    def joined(samples: list[dict[str, Any]]) -> dict[str, Any]:
        longest = max(len(sample["input_ids"]) for sample in samples)
        ids = [sample["input_ids"] + [0] * (longest - len(sample["input_ids"])) for sample in samples]
        return {"input_ids": torch.tensor(ids), "labels": torch.tensor([sample["labels"] for sample in samples])}

    args = TrainingArguments(str(tmp_path), train_sampling_strategy="group_by_length", per_device_eval_batch_size=2)
    trainer = Trainer(FirstWord(), args, data_collator=joined)

    output = trainer.predict([{"input_ids": [n] * (1 + n % 4), "labels": n} for n in range(9)])

    assert output.predictions.argmax(-1).tolist() == list(range(9))


class FirstWord(nn.Module):
    """Predicts the first word of each sample."""

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        return nn.functional.one_hot(input_ids[:, 0], 9).float()


def test_an_evaluation_of_batches_without_padding_weights_them_by_their_samples(tmp_path: Path) -> None:
    def script(side: Any, folder: Path) -> Any:
        rows = [{"input_ids": sentence} for sentence in sentences(7)]
        collator = transformers.DataCollatorWithFlattening()
        trainer = side.Trainer(gpt(), arguments(side, folder), eval_dataset=rows, data_collator=collator)
        return trainer, trainer.evaluate()

    ours, theirs = on_both(tmp_path, script)

    assert common(ours.returned) == common(theirs.returned)


def test_predict_accepts_data_without_labels(tmp_path: Path) -> None:
    output = a_trainer(tmp_path).predict([{"x": torch.zeros(8)}] * 5)

    assert output.predictions.shape == (5, 4)
    assert output.label_ids is None
    assert "test_loss" not in output.metrics


def test_outputs_that_are_none_are_none_in_the_predictions(tmp_path: Path) -> None:
    class Says(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = torch.nn.Linear(8, 4)

        def forward(self, x: torch.Tensor) -> dict[str, Any]:
            return {"logits": self.net(x), "attentions": None, "hidden": x}

    logits, attentions, hidden = a_trainer(tmp_path, Says()).predict([{"x": torch.zeros(8)}] * 5).predictions

    assert (logits.shape, attentions, hidden.shape) == ((5, 4), None, (5, 8))


def test_predictions_of_unequal_length_are_filled_with_minus_100(tmp_path: Path) -> None:
    rows = [{"input_ids": torch.zeros(length, dtype=torch.long)} for length in (3, 5)]
    trainer = a_trainer(tmp_path, toy.gpt(), values={"per_device_eval_batch_size": 1})

    predictions = trainer.predict(rows).predictions

    assert predictions.shape == (2, 5, 32)
    assert (predictions[0, 3:] == -100).all()


def test_the_accuracy_of_a_causal_model_compares_with_the_next_token(tmp_path: Path) -> None:
    """A new model with tied weights predicts its input token, but the label is the next token."""
    trainer = a_trainer(
        tmp_path, toy.gpt(), eval_dataset=toy.text(n=8), metrics=["accuracy"], values={"per_device_eval_batch_size": 4}
    )

    assert trainer.evaluate()["eval_accuracy"] < 0.2


def test_an_unknown_metric_is_refused_before_training(tmp_path: Path) -> None:
    with pytest.raises(UnknownComponent, match="'acuracy'") as error:
        a_trainer(tmp_path, metrics=["acuracy"])
    assert error.value.hint == "did you mean 'accuracy'?"


@pytest.mark.parametrize("name", ["accuracy", "f1", "precision", "recall", "perplexity", "mcc"])
def test_classification_metrics_refuse_labels_that_are_not_classes(name: str) -> None:
    with pytest.raises(ValueError, match=f"{name} counts classes.* mse, mae or rmse"):
        make_metric(name).update(torch.zeros(8, 4), torch.full((8, 4), 0.5))


def test_two_trainers_with_different_precision_work_in_one_process(tmp_path: Path) -> None:
    a_trainer(tmp_path, values={"bf16": True}).train()

    assert a_trainer(tmp_path, values={"bf16": False}).train().global_step == 4
