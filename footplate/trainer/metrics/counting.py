"""Metrics of counts and of errors, each equal to its formula over all samples at once."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional

from footplate.trainer.losses import IGNORE
from footplate.trainer.metrics.sums import Sums, ratio

Average = Literal["macro", "micro", "weighted", "binary"]


class Accuracy(Sums):
    """Share of labels that the largest logit names; of all yes-or-no answers where a sample has several labels."""

    def __init__(self) -> None:
        super().__init__("accuracy")

    def update(self, logits: Tensor, labels: Tensor) -> None:
        if several_labels(self.name, logits, labels):
            self.add(right=logits.gt(0).eq(labels.bool()).sum(), all=torch.tensor(labels.numel(), device=logits.device))
            return
        # What is ignored is named by no logit, and so never right. A sum of booleans would first make numbers of them.
        right, counted = logits.argmax(-1).eq(labels), labels.ne(IGNORE)
        self.add(right=right.count_nonzero(), all=counted.count_nonzero())

    def value(self) -> float:
        return _mean(self.sums["right"], self.sums["all"])


class _PerClass(Sums):
    """Counts per class: how often it was named rightly, named at all, and true. No batch waits for the host."""

    def update(self, logits: Tensor, labels: Tensor) -> None:
        if several_labels(self.name, logits, labels):
            named, true = logits.gt(0).flatten(0, -2), labels.bool().flatten(0, -2)
            self.add(hits=(named & true).sum(0), named=named.sum(0), true=true.sum(0))
            return
        classes = logits.shape[-1]
        # What does not count goes to a class after the last: picking it out would wait for the device.
        nowhere = labels.eq(IGNORE)
        actual = labels.masked_fill(nowhere, classes).flatten()
        predicted = logits.argmax(-1).masked_fill(nowhere, classes).flatten()
        hits = torch.where(predicted.eq(actual), actual, classes)
        found = {"hits": hits, "named": predicted, "true": actual}
        self.add(**{name: _occurrences(each, classes + 1)[:classes] for name, each in found.items()})


class Counted(_PerClass):
    """Precision, recall or f1. `macro` averages over the classes that occur, `weighted` by how often they are true,
    `micro` counts all classes together, `binary` is about class 1."""

    def __init__(self, kind: Literal["precision", "recall", "f1"], average: Average = "macro", name: str = "") -> None:
        super().__init__(name or kind)
        self.kind, self.average = kind, average

    def value(self) -> float:
        hits, named, true = (self.sums[each] for each in ("hits", "named", "true"))
        below = {"precision": named, "recall": true, "f1": (named + true) / 2}[self.kind]
        if self.average == "micro":
            return float(ratio(hits.sum().double(), below.sum().double()))
        each = ratio(hits.double(), below.double())
        if self.average == "binary":
            return float(each[1] if len(each) > 1 else each[0])
        weights = true.double() if self.average == "weighted" else ((named + true) > 0).double()
        total = float(weights.sum())
        return float((each * weights).sum()) / total if total else math.nan


class Matthews(_PerClass):
    """The correlation of what was named with what is true, from -1 to 1; 0 where either never changes."""

    def __init__(self) -> None:
        super().__init__("mcc")

    def value(self) -> float:
        hits, named, true = (self.sums[each].double() for each in ("hits", "named", "true"))
        seen, right = float(true.sum()), float(hits.sum())
        spread = math.sqrt((seen**2 - float(named @ named)) * (seen**2 - float(true @ true)))
        return (right * seen - float(named @ true)) / spread if spread > 0 else 0.0


class Error(Sums):
    """Mean of some function of (prediction - label)."""

    def __init__(self, name: str, of: Callable[[Tensor], Tensor], finish: Callable[[float], float] = float) -> None:
        super().__init__(name)
        self.of, self.finish = of, finish

    def update(self, logits: Tensor, labels: Tensor) -> None:
        predicted = logits if logits.shape == labels.shape else logits.squeeze(-1)
        if predicted.shape != labels.shape:
            raise ValueError(
                f"{self.name} compares predictions of shape {tuple(logits.shape)} with labels of shape "
                f"{tuple(labels.shape)}: they must be the same"
            )
        off = self.of(predicted.float() - labels.float()).double().sum()
        self.add(off=off, all=torch.tensor(labels.numel(), device=off.device))

    def value(self) -> float:
        return self.finish(_mean(self.sums["off"], self.sums["all"]))


class Perplexity(Sums):
    """exp of the mean cross entropy per label that counts."""

    def __init__(self) -> None:
        super().__init__("perplexity")

    def update(self, logits: Tensor, labels: Tensor) -> None:
        require_classes(self.name, labels)
        flat = logits.reshape(-1, logits.shape[-1]).float()
        total = functional.cross_entropy(flat, labels.reshape(-1), ignore_index=IGNORE, reduction="sum")
        self.add(loss=total, all=labels.ne(IGNORE).sum())

    def value(self) -> float:
        mean = _mean(self.sums["loss"], self.sums["all"])
        return math.inf if mean >= 700 else math.exp(mean)


def require_classes(metric: str, labels: Tensor) -> None:
    if labels.is_floating_point():
        raise ValueError(f"{metric} counts classes, and these labels are no whole numbers: mse, mae or rmse suit them")


def several_labels(metric: str, logits: Tensor, labels: Tensor) -> bool:
    """Whether a sample may be of several classes: as many yes-or-no labels, as numbers, as there are logits."""
    if labels.shape != logits.shape or not labels.is_floating_point():
        require_classes(metric, labels)
        return False
    if not bool(((labels == 0) | (labels == 1)).all()):
        require_classes(metric, labels)
    return True


def _occurrences(values: Tensor, classes: int) -> Tensor:
    """As bincount, which waits for the device to learn the largest."""
    return torch.zeros(classes, dtype=torch.long, device=values.device).scatter_add_(0, values, torch.ones_like(values))


def _mean(total: Tensor, count: Tensor) -> float:
    return float(total) / int(count) if int(count) else math.nan
