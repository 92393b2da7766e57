"""Tests metrics that are selected by name and configured by arguments."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from footplate.components.component import public_names
from footplate.contract.errors import UnknownComponent
from footplate.contract.spec_parts import Component
from footplate.runtime.build import metric
from footplate.trainer.metrics.choose import METRICS, make_metric

LOGITS = torch.eye(3)[[0, 1, 1, 2, 0, 2]]
LABELS = torch.tensor([0, 1, 2, 2, 1, 2])


def values(use: str, **args: Any) -> dict[str, float]:
    instance = make_metric(metric(Component(use=use, args=args)))
    instance.update(LOGITS, LABELS)
    return instance.compute()


@pytest.mark.parametrize("kind", ["f1", "precision", "recall"])
@pytest.mark.parametrize("average", ["macro", "micro", "weighted", "binary"])
def test_an_average_given_as_argument_equals_the_metric_with_its_name(kind: str, average: str) -> None:
    assert list(values(kind, average=average).values()) == list(values(f"{kind}_{average}").values())


def test_metrics_with_different_averages_have_different_names() -> None:
    assert list(values("f1")) == ["f1"]
    assert list(values("f1", average="weighted")) == ["f1_weighted"]


def test_a_metric_without_arguments_is_passed_to_the_trainer_by_name() -> None:
    for name in METRICS:
        assert metric(Component(use=name)) == name


def test_a_class_of_torchmetrics_receives_its_arguments() -> None:
    assert "F1Score" in public_names("torchmetrics", "__init__.py")
    result = values("torchmetrics/F1Score", task="multiclass", num_classes=3, average="weighted")
    assert result["f1_score"] == pytest.approx(values("f1", average="weighted")["f1_weighted"])


def test_an_unknown_metric_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(UnknownComponent) as error:
        metric(Component(use="acuracy"))
    assert error.value.hint == "did you mean 'accuracy'?"
