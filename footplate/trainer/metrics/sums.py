"""The interface of a metric, and the base of our own metrics: named sums on the device."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor


class BatchMetric(Protocol):
    """An object that receives the logits and labels of every batch of an evaluation, and then computes its values."""

    def update(self, logits: Tensor, labels: Tensor) -> None: ...

    def compute(self) -> dict[str, float]: ...


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

    def join(self, everyone: Callable[[dict[str, Tensor]], list[dict[str, Tensor]]]) -> None:
        """Replaces the sums by those of all processes, which `everyone` gathers. A process may have no batch."""
        totals: dict[str, Tensor] = {}
        for sums in everyone({name: value.cpu() for name, value in self.sums.items()}):
            for name, value in sums.items():
                totals[name] = totals[name] + value if name in totals else value
        self.sums = totals

    def compute(self) -> dict[str, float]:
        """Returns the metric's value under its name, or NaN if there was no batch."""
        return {self.name: self.value() if self.sums else math.nan}

    def value(self) -> float:
        raise NotImplementedError


def ratio(numerator: Tensor, denominator: Tensor) -> Tensor:
    """Divides two tensors of counts. 0 / 0 is 0, because a class that was never predicted has no correct prediction."""
    return torch.where(denominator > 0, numerator / denominator.clamp(min=torch.finfo(torch.double).tiny), 0.0)
