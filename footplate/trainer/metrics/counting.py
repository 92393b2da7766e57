"""Metrics that are computed from sums over batches: accuracy, precision, recall, f1, mcc, errors, perplexity, auroc."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn import functional

from footplate.trainer.losses.labels import IGNORE
from footplate.trainer.losses.loss import in_shape_of

Average = Literal["macro", "micro", "weighted", "binary"]
_BYTES = 64 * 2**20
"""The largest size of the buckets in which Auroc counts scores."""
_FINEST = 18
"""The largest number of leading bits of a score by which Auroc distinguishes scores."""


class Sums:
    """The base of metrics that are computed from sums. Sums stay on the device and can be added over processes."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.sums: dict[str, Tensor] = {}

    def add(self, **values: Tensor) -> None:
        for name, value in values.items():
            if name in self.sums:
                self.sums[name].add_(value)
            else:
                # float64 holds counts exactly up to 2^53, and sums losses more precisely than float32.
                self.sums[name] = value.double() if value.is_floating_point() else value.long()

    def join(self, gather: Callable[[dict[str, Tensor]], list[dict[str, Tensor]]]) -> None:
        """Replaces the sums by those of all processes, which `everyone` gathers. A process may have no batch."""
        totals: dict[str, Tensor] = {}
        for sums in gather({name: value.cpu() for name, value in self.sums.items()}):
            for name, value in sums.items():
                totals[name] = totals[name] + value if name in totals else value
        self.sums = totals

    def compute(self) -> dict[str, float]:
        """Returns the metric's value under its name, or NaN if there was no batch."""
        return {self.name: self.value() if self.sums else math.nan}

    def value(self) -> float:
        raise NotImplementedError


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
        for name, occurring in (("hits", hits), ("named", predicted), ("true", actual)):
            # torch.bincount would wait for the device.
            counts = torch.zeros(classes + 1, dtype=torch.long, device=occurring.device)
            self.add(**{name: counts.scatter_add_(0, occurring, torch.ones_like(occurring))[:classes]})


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
            return float(_ratio(hits.sum().double(), denominators.sum().double()))
        scores = _ratio(hits.double(), denominators.double())
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
        predictions = in_shape_of(labels, logits, self.name)
        total = self.of(predictions.float() - labels.float()).double().sum()
        self.add(total=total, all=torch.tensor(labels.numel(), device=total.device))

    def value(self) -> float:
        return self.finish(_mean(self.sums["total"], self.sums["all"]))


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


class Auroc(Sums):
    """The probability that a positive sample has a higher score than a negative one. Ties count half.

    The result is the mean over classes that have positive and negative samples. Scores are counted in buckets, so that
    memory does not grow with the samples. A bucket is the leading 18 bits of a score as a float. Scores of any
    magnitude are distinguished if they differ by more than a 512th. With very many classes the buckets are coarser, so
    that all of them stay below 64 MiB.
    """

    def __init__(self) -> None:
        super().__init__("auroc")

    def update(self, logits: Tensor, labels: Tensor) -> None:
        scores, positive, counts = _binary_scores(self.name, logits.float(), labels)
        classes = scores.shape[1]
        bits = min(_FINEST, int(math.log2(_BYTES / 16 / classes)))
        at = _bucket(scores, bits) + (torch.arange(classes, device=scores.device) << bits)
        for name, selected in (("positive", positive & counts), ("negative", ~positive & counts)):
            zeros = torch.zeros(classes << bits, dtype=torch.long, device=scores.device)
            self.add(**{name: zeros.scatter_add_(0, at.flatten(), selected.long().flatten()).view(classes, -1)})

    def value(self) -> float:
        positive, negative = self.sums["positive"].double(), self.sums["negative"].double()
        negatives_below = negative.cumsum(1) - negative
        pairs = positive.sum(1) * negative.sum(1)
        ordered = (positive * (negatives_below + negative / 2)).sum(1)
        has_pairs = pairs > 0
        return float((ordered[has_pairs] / pairs[has_pairs]).mean()) if bool(has_pairs.any()) else math.nan


def _binary_scores(metric: str, logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor, Any]:
    """Returns scores, positive labels and the mask of labels to use, each of shape (samples, classes).

    Two classes become one, whose score is the difference of both logits.
    """
    if several_labels(metric, logits, labels):
        scores, positive = logits.reshape(-1, logits.shape[-1]), labels.bool().reshape(-1, logits.shape[-1])
        return scores, positive, torch.ones_like(positive)
    labels = labels.reshape(-1, 1)
    counts = labels.ne(IGNORE)
    logits = logits.reshape(len(labels), -1)
    classes = logits.shape[1]
    if classes == 1:
        return logits, labels.eq(1), counts
    if classes == 2:
        return logits[:, 1:] - logits[:, :1], labels.eq(1), counts
    # Log odds of each class against all others keep their order where probabilities round to 1.
    chance = logits.log_softmax(-1)
    scores = chance - torch.log1p(-chance.exp().clamp(max=1 - 1e-7))
    return scores, labels.eq(torch.arange(classes, device=labels.device)), counts.expand_as(scores)


def _bucket(scores: Tensor, bits: int) -> Tensor:
    """Returns the number of each score's bucket: the leading bits of the float, changed so that the order is kept."""
    # Adding zero turns negative zero into positive zero.
    bit_patterns = (scores.contiguous() + 0.0).view(torch.int32).long()
    ordered = torch.where(bit_patterns < 0, -(bit_patterns & 0x7FFFFFFF), bit_patterns) + 0x80000000
    return ordered >> (32 - bits)


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


def _mean(total: Tensor, count: Tensor) -> float:
    return float(total) / int(count) if int(count) else math.nan


def _ratio(numerator: Tensor, denominator: Tensor) -> Tensor:
    """Divides two tensors of counts. 0 / 0 is 0, because a class that was never predicted has no correct prediction."""
    return torch.where(denominator > 0, numerator / denominator.clamp(min=torch.finfo(torch.double).tiny), 0.0)
