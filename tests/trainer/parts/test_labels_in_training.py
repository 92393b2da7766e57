"""Tests that a label out of range ends a run with its value and place, before the first step if possible."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from footplate.contract.errors import DatasetError
from footplate.trainer.arguments import TrainingArguments
from footplate.trainer.trainer import Trainer


class Plain(nn.Module):
    """A model that does not state its classes, and returns logits or a loss of its own."""

    def __init__(self, *, own_loss: bool) -> None:
        super().__init__()
        self.net, self.own_loss = nn.Linear(3, 4), own_loss
        self.calls = 0

    def forward(self, x: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
        self.calls += 1
        logits = self.net(x)
        if self.own_loss and labels is not None:
            return {"loss": functional.cross_entropy(logits, labels), "logits": logits}
        return {"logits": logits}


class PlainForSequenceClassification(Plain):
    def __init__(self, **values: Any) -> None:
        super().__init__(**values)
        self.config = SimpleNamespace(num_labels=4, problem_type=None)


def rows(bad_at: int) -> list[dict[str, Any]]:
    return [{"x": torch.ones(3), "labels": 9 if at == bad_at else at % 4} for at in range(16)]


def trained(folder: Path, model: nn.Module, bad_at: int) -> None:
    args = TrainingArguments(
        str(folder), max_steps=4, per_device_train_batch_size=4, train_sampling_strategy="sequential",
        save_strategy="no", report_to="none", disable_tqdm=True, use_cpu=True,
    )  # fmt: skip
    Trainer(model, args, train_dataset=rows(bad_at)).train()


def test_a_label_out_of_range_is_refused_before_the_model_is_called(tmp_path: Path) -> None:
    model = PlainForSequenceClassification(own_loss=True)
    with pytest.raises(
        DatasetError, match="labels has 9 at sample 2 of the batch, and the model has the classes 0 to 3"
    ):
        trained(tmp_path, model, bad_at=2)
    assert model.calls == 0


@pytest.mark.parametrize("own_loss", [False, True])
def test_a_label_out_of_range_in_a_later_batch_is_named_once_the_model_fails(tmp_path: Path, own_loss: bool) -> None:
    model = Plain(own_loss=own_loss)
    with pytest.raises(DatasetError, match="labels has 9 at sample 1 of the batch") as error:
        trained(tmp_path, model, bad_at=9)
    assert model.calls == 3
    assert isinstance(error.value.__cause__ or error.value.__context__, IndexError)
