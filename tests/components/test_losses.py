"""Tests losses by name. They equal torch's losses over a whole batch, however the batch is split."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from footplate.components import toy
from footplate.components.losses import LogitsLoss
from footplate.contract.errors import DatasetError
from footplate.runtime.build import load
from footplate.trainer.arguments import TrainingArguments
from footplate.trainer.trainer import Trainer, set_seed
from tests.support.training import digest

LOGITS = torch.tensor([[1.0, -2.0, 0.5], [0.3, 0.2, -1.0], [2.0, 0.0, 0.0], [-1.0, 1.0, 0.0]])
CLASSES = torch.tensor([0, 2, -100, 1])
YES_NO = torch.tensor([[1.0, 0, 1], [0, 0, 1], [1, 1, 1], [0, 1, 0]])
NUMBERS = torch.linspace(-2, 2, 12).reshape(4, 3)
WEIGHTS = [1.0, 2.0, 0.5]


def _focal() -> Tensor:
    costs = functional.cross_entropy(LOGITS, CLASSES, reduction="none")
    return ((1 - torch.exp(-costs)) ** 2 * costs).sum() / 3


CASES: list[tuple[str, dict[str, Any], Tensor, Tensor]] = [
    ("cross_entropy", {}, CLASSES, functional.cross_entropy(LOGITS, CLASSES)),
    ("cross_entropy", {"label_smoothing": 0.2}, CLASSES,
     functional.cross_entropy(LOGITS, CLASSES, label_smoothing=0.2)),
    ("cross_entropy", {"weights": WEIGHTS}, CLASSES,
     functional.cross_entropy(LOGITS, CLASSES, torch.tensor(WEIGHTS), reduction="sum") / 3),
    ("focal", {}, CLASSES, _focal()),
    ("focal", {"gamma": 0.0}, CLASSES, functional.cross_entropy(LOGITS, CLASSES)),
    ("bce", {}, YES_NO, functional.binary_cross_entropy_with_logits(LOGITS, YES_NO)),
    ("bce", {"pos_weight": WEIGHTS}, YES_NO,
     functional.binary_cross_entropy_with_logits(LOGITS, YES_NO, pos_weight=torch.tensor(WEIGHTS))),
    ("mse", {}, NUMBERS, functional.mse_loss(LOGITS, NUMBERS)),
    ("l1", {}, NUMBERS, functional.l1_loss(LOGITS, NUMBERS)),
    ("huber", {"delta": 0.5}, NUMBERS, functional.huber_loss(LOGITS, NUMBERS, delta=0.5)),
]  # fmt: skip


@pytest.mark.parametrize(("name", "args", "labels", "expected"), CASES)
def test_a_loss_equals_torchs_loss_over_the_batch(
    name: str, args: dict[str, Any], labels: Tensor, expected: Tensor
) -> None:
    assert load("losses", name)(**args)({"logits": LOGITS}, labels) == pytest.approx(float(expected))


@pytest.mark.parametrize(("name", "args", "labels", "expected"), CASES)
def test_losses_of_micro_batches_add_up_to_the_loss_of_the_batch(
    name: str, args: dict[str, Any], labels: Tensor, expected: Tensor
) -> None:
    loss, count = load("losses", name)(**args), labels.ne(-100).sum()

    shares = [loss({"logits": LOGITS[part]}, labels[part], count) for part in (slice(0, 1), slice(1, 4))]

    assert float(sum(shares)) == pytest.approx(float(expected))


def test_an_ignored_class_gives_no_gradient() -> None:
    logits = LOGITS.clone().requires_grad_()
    load("losses", "focal")(gamma=1.5, weights=WEIGHTS)({"logits": logits}, CLASSES).backward()
    assert logits.grad is not None
    assert logits.grad[2].eq(0).all()
    assert logits.grad.isfinite().all()


@pytest.mark.parametrize(
    ("name", "args", "labels", "message"),
    [
        ("cross_entropy", {}, NUMBERS, "needs a class, a whole number"),
        ("cross_entropy", {"weights": [1.0]}, CLASSES, "has 1 weights, but the model has 3 classes"),
        ("mse", {}, torch.ones(4), "needs logits and labels of the same shape"),
        ("bce", {}, None, "the batch has no `labels`"),
    ],
)
def test_labels_or_class_weights_that_do_not_fit_a_loss_are_refused(
    name: str, args: dict[str, Any], labels: Any, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        load("losses", name)(**args)({"logits": LOGITS}, labels)


def test_a_model_without_logits_is_refused_with_the_names_of_its_outputs() -> None:
    with pytest.raises(ValueError, match="needs a model's logits, but this model returned: loss, bits"):
        load("losses", "mse")()({"loss": NUMBERS, "bits": NUMBERS}, NUMBERS)


def test_a_label_out_of_range_is_reported_with_value_and_sample() -> None:
    with pytest.raises(DatasetError, match="labels has 7 at sample 3"):
        load("losses", "cross_entropy")()({"logits": LOGITS}, torch.tensor([0, 1, 2, 7]))


def test_logits_with_one_column_are_compared_with_scalar_labels() -> None:
    assert float(load("losses", "l1")()({"logits": torch.ones(3, 1)}, torch.zeros(3))) == 1.0


def trained(folder: Path, batch: int, accumulate: int) -> Trainer:
    set_seed(0)
    args = TrainingArguments(
        str(folder),
        max_steps=6,
        per_device_train_batch_size=batch,
        gradient_accumulation_steps=accumulate,
        train_sampling_strategy="sequential",
        optim="sgd",
        learning_rate=0.1,
        logging_steps=1,
        save_strategy="no",
        disable_tqdm=True,
        use_cpu=True,
    )
    loss = load("losses", "focal")(weights=[1.0, 3.0, 0.5, 1.0])
    # 44 samples: the last window of an epoch is smaller than the others.
    trainer = Trainer(toy.mlp(), args, train_dataset=toy.classification(n=44), compute_loss_func=loss)
    trainer.train()
    return trainer


def test_gradient_accumulation_with_a_named_loss_equals_one_large_batch(tmp_path: Path) -> None:
    whole, cut = trained(tmp_path / "whole", 16, 1), trained(tmp_path / "cut", 4, 4)

    losses = [[log["loss"] for log in item.state.log_history if "loss" in log] for item in (whole, cut)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-6)
    for first, other in zip(whole.model.parameters(), cut.model.parameters(), strict=True):
        torch.testing.assert_close(first, other, rtol=1e-5, atol=1e-6)
    assert digest(whole.model.state_dict()) != digest(toy.mlp().state_dict())


def test_losses_of_causal_models_compare_logits_with_the_next_label() -> None:
    logits, labels = torch.randn(2, 5, 3), torch.randint(0, 3, (2, 5))
    loss = load("losses", "cross_entropy")()
    assert isinstance(loss, LogitsLoss)
    loss.shifts_labels = True

    expected = functional.cross_entropy(logits[:, :-1].reshape(-1, 3), labels[:, 1:].reshape(-1))
    assert loss({"logits": logits}, labels) == pytest.approx(float(expected))
