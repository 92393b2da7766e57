"""Metrics by name that stream: memory does not grow with the number of samples."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional

from contract.errors import UnknownComponent
from worker.trainer.losses import IGNORE


class Metric(Protocol):
    """Sees every batch once, then says its values."""

    def update(self, logits: Tensor, labels: Tensor) -> None: ...

    def compute(self) -> dict[str, float]: ...


class _Mean:
    """A mean over elements: sums stay on the device, so that no batch waits for the host."""

    def __init__(self, name: str, finish: Callable[[float], float] = float) -> None:
        self.name, self.finish = name, finish
        self.total: Tensor | float = 0.0
        self.count: Tensor | int = 0

    def add(self, total: Tensor, count: Tensor | int) -> None:
        self.total = self.total + total.double()
        self.count = self.count + count

    def compute(self) -> dict[str, float]:
        count = int(self.count)
        return {self.name: self.finish(float(self.total) / count) if count else math.nan}


def _require_classes(metric: str, labels: Tensor) -> None:
    if labels.is_floating_point():
        raise ValueError(f"{metric} counts classes, and these labels are no whole numbers: mse, mae or rmse suit them")


class Accuracy(_Mean):
    """Share of labels that the largest logit names."""

    def __init__(self) -> None:
        super().__init__("accuracy")

    def update(self, logits: Tensor, labels: Tensor) -> None:
        _require_classes(self.name, labels)
        counts = labels.ne(IGNORE)
        self.add((logits.argmax(-1).eq(labels) & counts).sum(), counts.sum())


class Error(_Mean):
    """Mean of some function of (prediction - label)."""

    def __init__(self, name: str, of: Callable[[Tensor], Tensor], finish: Callable[[float], float] = float) -> None:
        super().__init__(name, finish)
        self.of = of

    def update(self, logits: Tensor, labels: Tensor) -> None:
        predicted = logits if logits.shape == labels.shape else logits.squeeze(-1)
        self.add(self.of(predicted.float() - labels.float()).sum(), labels.numel())


class Perplexity(_Mean):
    """exp of the mean cross entropy per label that counts."""

    def __init__(self) -> None:
        super().__init__("perplexity", lambda mean: math.exp(mean) if mean < 700 else math.inf)

    def update(self, logits: Tensor, labels: Tensor) -> None:
        _require_classes(self.name, labels)
        flat = logits.reshape(-1, logits.shape[-1]).float()
        total = functional.cross_entropy(flat, labels.reshape(-1), ignore_index=IGNORE, reduction="sum")
        self.add(total, labels.ne(IGNORE).sum())


class Macro:
    """Precision, recall or f1: made per class from what was counted, then averaged over the classes that occur."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.hits: Tensor | None = None
        self.named: Tensor | None = None
        self.true: Tensor | None = None

    def update(self, logits: Tensor, labels: Tensor) -> None:
        _require_classes(self.name, labels)
        classes = logits.shape[-1]
        counts = labels.ne(IGNORE)
        predicted, actual = logits.argmax(-1)[counts], labels[counts]
        seen = (actual[predicted.eq(actual)], predicted, actual)
        hits, named, true = (torch.bincount(each, minlength=classes) for each in seen)
        if self.hits is None or self.named is None or self.true is None:
            self.hits, self.named, self.true = hits, named, true
        else:
            self.hits, self.named, self.true = self.hits + hits, self.named + named, self.true + true

    def compute(self) -> dict[str, float]:
        if self.hits is None or self.named is None or self.true is None:
            return {self.name: math.nan}
        below = {"precision": self.named, "recall": self.true, "f1": (self.named + self.true) / 2}[self.name]
        occurs = (self.named + self.true) > 0
        share = torch.where(below > 0, self.hits / below.clamp(min=0.5), torch.zeros_like(below, dtype=torch.float))
        return {self.name: float(share[occurs].mean()) if bool(occurs.any()) else math.nan}


METRICS: dict[str, Callable[[], Metric]] = {
    "accuracy": Accuracy,
    "f1": lambda: Macro("f1"),
    "mae": lambda: Error("mae", torch.abs),
    "mse": lambda: Error("mse", torch.square),
    "perplexity": Perplexity,
    "precision": lambda: Macro("precision"),
    "recall": lambda: Macro("recall"),
    "rmse": lambda: Error("rmse", torch.square, math.sqrt),
}


def make_metric(metric: str | Callable[[], Metric]) -> Metric:
    """A fresh one for one evaluation."""
    if not isinstance(metric, str):
        return metric()
    if metric not in METRICS:
        raise UnknownComponent("metric", metric, METRICS)
    return METRICS[metric]()
