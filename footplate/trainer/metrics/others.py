"""Metrics that others wrote, behind our contract."""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping
from importlib import import_module
from typing import Any

import torch
from torch import Tensor

from footplate.contract.errors import UnknownComponent
from footplate.trainer.losses import IGNORE

PREFIX = "torchmetrics/"


class TorchMetric:
    """One of torchmetrics', by its class name or made already. What a class wants to know of classes a batch says."""

    def __init__(self, metric: Any, **options: Any) -> None:
        by_name = isinstance(metric, str)
        self._kind = _named(metric) if by_name else type(metric)
        self._made: Any = None if by_name else metric
        self._options = options
        self.name = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", self._kind.__name__).lower()

    def update(self, logits: Tensor, labels: Tensor) -> None:
        if self._made is None:
            self._made = self._kind(**{**_about_classes(self._kind, logits, labels), **self._options})
        # Each process is shown what all of them saw: adding up once more would count all of it again.
        self._made.sync_on_compute = False
        self._made.to(logits.device).update(*_as_they_want(type(self._made), logits, labels))

    def compute(self) -> dict[str, float]:
        if self._made is None:
            return {self.name: float("nan")}
        found = self._made.compute()
        if isinstance(found, Mapping):
            return {str(name): float(value) for name, value in found.items()}
        if found.numel() == 1:
            return {self.name: float(found)}
        return {f"{self.name}_{at}": float(value) for at, value in enumerate(found.flatten())}


def _named(name: str) -> Any:
    try:
        library: Any = import_module("torchmetrics")
        text: Any = import_module("torchmetrics.text")
    except ImportError as error:
        raise ImportError(f"{PREFIX}{name} needs the extra metrics: pip install 'footplate[metrics]'") from error
    # What is about text is still there under its old name too, and warns.
    known = {each: getattr(library, each) for each in library.__all__ if each not in text.__all__}
    known |= {each: getattr(text, each) for each in text.__all__}
    if name not in known or not isinstance(known[name], type):
        raise UnknownComponent("metric of torchmetrics", name, [each for each in known if each[0].isupper()])
    return known[name]


def _about_classes(kind: Any, logits: Tensor, labels: Tensor) -> dict[str, Any]:
    takes = inspect.signature(kind.__new__ if "task" in inspect.signature(kind.__new__).parameters else kind).parameters
    found: dict[str, Any] = {"ignore_index": IGNORE} if "ignore_index" in takes else {}
    if "task" not in takes:
        return found
    if logits.shape == labels.shape:
        return {**found, "task": "multilabel", "num_labels": logits.shape[-1]}
    return {**found, "task": "multiclass", "num_classes": logits.shape[-1]}


def _as_they_want(kind: type, logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Classification wants samples by classes; tokens are samples to it. Everybody else gets what there is."""
    if ".classification" in kind.__module__:
        if logits.shape == labels.shape:
            return logits.reshape(-1, logits.shape[-1]), labels.reshape(-1, labels.shape[-1]).long()
        return logits.reshape(-1, logits.shape[-1]), labels.reshape(-1)
    return (logits.squeeze(-1) if logits.shape == (*labels.shape, 1) else logits), labels


class AddBatch:
    """Anything with `add_batch(predictions=, references=)` and `compute()`, as Hugging Face's evaluate loads it.

    It is handed classes where there are logits, and only the labels that count.
    """

    def __init__(self, metric: Any) -> None:
        self.metric = metric

    def update(self, logits: Tensor, labels: Tensor) -> None:
        predictions = logits if logits.shape == labels.shape else logits.argmax(-1)
        counts = torch.ones_like(labels, dtype=torch.bool) if labels.is_floating_point() else labels.ne(IGNORE)
        self.metric.add_batch(predictions=predictions[counts].tolist(), references=labels[counts].tolist())

    def compute(self) -> dict[str, float]:
        return dict(self.metric.compute() or {})
