"""Metrics that are computed from sums over batches: accuracy, precision, recall, f1, mcc, errors and perplexity."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional

from footplate.trainer.losses.labels import IGNORE
from footplate.trainer.metrics.sums import Sums, ratio

Average = Literal["macro", "micro", "weighted", "binary"]


class Accuracy(Sums):
    """The share of labels that the largest logit predicts. With several labels per sample, each label counts."""

    def __init__(self) -> None:
        super().__init__("accuracy")

    def update(self, logits: Tensor, labels: Tensor) -> None:
        if several_labels(self.name, logits, labels):
            self.add(right=logits.gt(0).eq(labels.bool()).sum(), all=torch.tensor(labels.numel(), device=logits.device))
            return
        # An ignored label is negative and equals no class, so it is never right. count_nonzero avoids a cast to int.
        right, counted = logits.argmax(-1).eq(labels), labels.ne(IGNORE)
        self.add(right=right.count_nonzero(), all=counted.count_nonzero())

    def value(self) -> float:
        return _mean(self.sums["right"], self.sums["all"])


class _PerClass(Sums):
    """Counts correct predictions, all predictions and labels of each class, without waiting for the device.

    A single logit per sample is a prediction of two classes.
    """

    labels_are_samples = False
    """True if each label of a multi-label sample counts as a binary sample of its own."""

    def update(self, logits: Tensor, labels: Tensor) -> None:
        if several_labels(self.name, logits, labels):
            if labels.dim() > 1 and not self.labels_are_samples:
                named, true = logits.gt(0).flatten(0, -2), labels.bool().flatten(0, -2)
                self.add(hits=(named & true).sum(0), named=named.sum(0), true=true.sum(0))
                return
            logits, labels = functional.one_hot(logits.gt(0).long(), 2), labels.long()
        classes = logits.shape[-1]
        # Ignored labels go to an extra class after the last, because indexing them away would wait for the device.
        is_ignored = labels.eq(IGNORE)
        actual = labels.masked_fill(is_ignored, classes).flatten()
        predicted = logits.argmax(-1).masked_fill(is_ignored, classes).flatten()
        hits = torch.where(predicted.eq(actual), actual, classes)
        classes_by_count = {"hits": hits, "named": predicted, "true": actual}
        self.add(
            **{name: _occurrences(occurring, classes + 1)[:classes] for name, occurring in classes_by_count.items()}
        )


class Counted(_PerClass):
    """Precision, recall or f1, averaged over the classes.

    `macro` averages over the classes that occur, and `weighted` by the number of their labels. `micro` counts all
    classes together, and `binary` uses class 1 alone.
    """

    def __init__(self, kind: Literal["precision", "recall", "f1"], average: Average = "macro", name: str = "") -> None:
        super().__init__(name or kind)
        self.kind, self.average = kind, average

    def value(self) -> float:
        hits, predicted, actual = (self.sums[name] for name in ("hits", "named", "true"))
        denominators = {"precision": predicted, "recall": actual, "f1": (predicted + actual) / 2}[self.kind]
        if self.average == "micro":
            return float(ratio(hits.sum().double(), denominators.sum().double()))
        scores = ratio(hits.double(), denominators.double())
        if self.average == "binary":
            return float(scores[1] if len(scores) > 1 else scores[0])
        weights = actual.double() if self.average == "weighted" else ((predicted + actual) > 0).double()
        total = float(weights.sum())
        return float((scores * weights).sum()) / total if total else math.nan


class Matthews(_PerClass):
    """The Matthews correlation of predictions and labels, from -1 to 1. It is 0 if either has one class only."""

    labels_are_samples = True

    def __init__(self) -> None:
        super().__init__("mcc")

    def value(self) -> float:
        hits, predicted, actual = (self.sums[name].double() for name in ("hits", "named", "true"))
        total, correct = float(actual.sum()), float(hits.sum())
        spread = math.sqrt((total**2 - float(predicted @ predicted)) * (total**2 - float(actual @ actual)))
        return (correct * total - float(predicted @ actual)) / spread if spread > 0 else 0.0


class Error(Sums):
    """The mean of a function of (prediction - label), such as the square for mse."""

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
    """The exponential of the mean cross entropy over the labels that are not -100."""

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
        raise ValueError(f"{metric} counts classes, and these labels are not whole numbers: use mse, mae or rmse")


def several_labels(metric: str, logits: Tensor, labels: Tensor) -> bool:
    """Returns True for multi-label classification: one label per logit, as the floats 0 and 1."""
    if labels.shape != logits.shape or not labels.is_floating_point():
        require_classes(metric, labels)
        return False
    if not bool(((labels == 0) | (labels == 1)).all()):
        require_classes(metric, labels)
    return True


def _occurrences(values: Tensor, classes: int) -> Tensor:
    """Returns how often each number from 0 to `classes` - 1 occurs. torch.bincount would wait for the device."""
    return torch.zeros(classes, dtype=torch.long, device=values.device).scatter_add_(0, values, torch.ones_like(values))


def _mean(total: Tensor, count: Tensor) -> float:
    return float(total) / int(count) if int(count) else math.nan
