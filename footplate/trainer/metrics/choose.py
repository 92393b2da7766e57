"""The interface of a metric. Makes metrics by name, or from a factory."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol, get_args

import torch
from torch import Tensor

from footplate.contract.errors import UnknownComponent
from footplate.trainer.metrics.counting import Accuracy, Auroc, Average, Counted, Error, Matthews, Perplexity
from footplate.trainer.metrics.third_party import PREFIX, TEXTS, AddBatch, TextMetric, TorchMetric


class BatchMetric(Protocol):
    """An object that receives the logits and labels of every batch of an evaluation, and then computes its values."""

    def update(self, logits: Tensor, labels: Tensor) -> None: ...

    def compute(self) -> dict[str, float]: ...


METRICS: dict[str, Callable[[], BatchMetric]] = {
    "accuracy": Accuracy,
    "auroc": Auroc,
    "mae": lambda: Error("mae", torch.abs),
    "mcc": Matthews,
    "mse": lambda: Error("mse", torch.square),
    "perplexity": Perplexity,
    "rmse": lambda: Error("rmse", torch.square, math.sqrt),
}
for _kind in ("f1", "precision", "recall"):
    METRICS[_kind] = partial(Counted, _kind)
    for _average in get_args(Average):
        METRICS[f"{_kind}_{_average}"] = partial(Counted, _kind, _average, f"{_kind}_{_average}")


def make_metric(metric: str | Callable[[], Any], processor: Any = None) -> BatchMetric:
    """Returns a new metric for one evaluation.

    `metric` is a name, `torchmetrics/` with a class name, or a factory. `processor` decodes tokens for metrics that
    compare texts.
    """
    if isinstance(metric, str):
        if metric in TEXTS:
            return TextMetric(metric, processor)
        if metric.startswith(PREFIX):
            return TorchMetric(metric.removeprefix(PREFIX))
        if metric not in METRICS:
            raise UnknownComponent("metric", metric, [*METRICS, *TEXTS])
        return METRICS[metric]()
    instance: Any = metric()
    if hasattr(instance, "add_batch"):
        return AddBatch(instance)
    return TorchMetric(instance) if type(instance).__module__.startswith("torchmetrics") else instance
