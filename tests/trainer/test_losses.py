"""Tests that losses are sums and counts, so that they do not depend on how a batch was split."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import TensorDataset

from footplate.components import toy
from footplate.trainer.arguments import TrainingArguments
from footplate.trainer.losses.labels import IGNORE
from footplate.trainer.losses.loss import from_logits, regression
from footplate.trainer.trainer import Trainer, set_seed


def trained(folder: Path, model: nn.Module, data: Any, trainer: type[Trainer] = Trainer, **values: Any) -> Trainer:
    options = {k: values.pop(k) for k in ("compute_loss_func", "data_collator") if k in values}
    defaults = {"max_steps": 3, "logging_steps": 1, "learning_rate": 1e-2, "save_strategy": "no", "disable_tqdm": True}
    instance = trainer(model, TrainingArguments(str(folder), **{**defaults, **values}), train_dataset=data, **options)
    instance.train()
    return instance


def a_plain_model() -> nn.Sequential:
    set_seed(3)
    return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4))


def test_a_plain_module_trains_on_pairs_of_tensors(tmp_path: Path) -> None:
    columns = toy.classification(n=64).columns

    trainer = trained(
        tmp_path, a_plain_model(), TensorDataset(columns["x"], columns["labels"]), num_train_epochs=5, max_steps=-1
    )

    curve = [row["loss"] for row in trainer.state.log_history if "loss" in row]
    assert sum(curve[-8:]) < 0.8 * sum(curve[:8])


class Tokens(nn.Module):
    """A model that returns logits only. Labels of -100 do not count."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        return {"logits": self.net(x)}


def test_accumulation_over_uneven_labels_equals_one_large_batch(tmp_path: Path) -> None:
    """Most labels of some samples are ignored, so the mean of micro-batch means would be another number."""
    set_seed(1)
    rows = [{"x": torch.randn(6, 8), "labels": torch.randint(4, (6,))} for _ in range(8)]
    for row in rows[::2]:
        row["labels"][1:] = IGNORE
    models = []
    for size, accumulate in ((8, 1), (1, 8), (3, 3)):
        set_seed(3)
        model = Tokens()
        trained(
            tmp_path,
            model,
            rows,
            max_steps=1,
            optim="sgd",
            max_grad_norm=0.0,
            per_device_train_batch_size=size,
            gradient_accumulation_steps=accumulate,
            train_sampling_strategy="sequential",
        )
        models.append(model.net.weight.detach())

    assert torch.allclose(models[0], models[1], atol=1e-7)
    assert torch.allclose(models[0], models[2], atol=1e-7)


@pytest.mark.parametrize("shape", ["tuple", "object", "per sample"])
def test_the_loss_is_read_from_tuples_objects_and_per_sample_losses(tmp_path: Path, shape: str) -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = a_plain_model()

        def forward(self, x: Tensor, labels: Tensor) -> Any:
            logits = self.net(x)
            item = functional.cross_entropy(logits, labels, reduction="none")
            if shape == "per sample":
                return {"loss": item, "logits": logits}
            if shape == "tuple":
                return item.mean(), logits
            return type("Output", (), {"loss": item.mean(), "logits": logits})()

    data = toy.classification(n=24)
    plain = a_plain_model()
    trained(tmp_path, plain, [(row["x"], row["labels"]) for row in data], max_steps=3)

    net = Net()
    trained(tmp_path, net, data, max_steps=3)

    for mine, theirs in zip(net.net.parameters(), plain.parameters(), strict=True):
        assert torch.allclose(mine, theirs, atol=1e-6)


def test_a_tuple_that_does_not_begin_with_a_loss_is_refused(tmp_path: Path) -> None:
    """If logits come first in the tuple, minimizing their sum would look like training, but train nothing useful."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = a_plain_model()

        def forward(self, x: Tensor) -> Any:
            return self.net(x), x

    with pytest.raises(ValueError, match="returned a tuple that does not begin with a loss"):
        trained(tmp_path, Net(), toy.classification(n=24))


@pytest.mark.parametrize("filtered", [True, False])
def test_nan_steps_are_counted_even_if_the_nan_filter_is_on(tmp_path: Path, filtered: bool) -> None:
    """Hugging Face's filter logs 0.0 from the first NaN on, so a failed run looks perfect."""
    data = [{"x": torch.full((8,), float("nan")), "labels": torch.zeros(4)}] * 8

    first = trained(tmp_path, toy.mlp(), data, max_steps=1, logging_nan_inf_filter=filtered).state.log_history[0]

    assert first["nan_steps"] == 1
    assert (first["loss"] == 0.0) is filtered
    assert (first["loss"] != first["loss"]) is not filtered


def test_the_first_nan_loss_of_a_run_is_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    data = [{"x": torch.full((8,), float("nan")), "labels": torch.zeros(4)}] * 8

    trained(tmp_path, toy.mlp(), data, max_steps=3, logging_steps=1)

    (warning,) = [record.getMessage() for record in caplog.records if "NaN" in record.getMessage()]
    assert "max_nan_steps" in warning


def test_batches_with_a_nan_loss_are_counted_in_the_evaluation(tmp_path: Path) -> None:
    rows = [dict(row) for row in toy.regression(n=24)]
    for row in rows[8:16]:
        row["x"] = torch.full((8,), float("nan"))

    def evaluated(data: Any, **values: Any) -> dict[str, float]:
        args = TrainingArguments(str(tmp_path), disable_tqdm=True, **values)
        return Trainer(toy.mlp(), args, eval_dataset=data).evaluate()

    report = evaluated(rows)
    assert report["eval_nan_batches"] == 1
    assert math.isfinite(report["eval_loss"])
    assert "eval_nan_batches" not in evaluated(rows[:8])
    unfiltered = evaluated(rows, logging_nan_inf_filter=False)
    assert math.isnan(unfiltered["eval_loss"])
    assert "eval_nan_batches" not in unfiltered


def test_logits_that_do_not_fit_the_labels_are_refused_with_their_shapes() -> None:
    with pytest.raises(ValueError, match=r"logits of shape \(2, 5, 4\) and labels of shape \(2,\)"):
        from_logits(torch.zeros(2, 5, 4), torch.zeros(2, dtype=torch.long))


def test_predictions_with_one_column_are_not_broadcast_against_the_labels() -> None:
    loss = regression(torch.tensor([[1.0], [2.0]]), torch.tensor([1.0, 2.0]))

    assert float(loss.total) == 0.0
