"""The contract of a metric, and what all of ours are made of: named sums on the device."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor


class Metric(Protocol):
    """Sees every batch once, then says its values."""

    def update(self, logits: Tensor, labels: Tensor) -> None: ...

    def compute(self) -> dict[str, float]: ...


class Sums:
    """Sums that no batch waits for the host to read, and that processes can add up."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.sums: dict[str, Tensor] = {}

    def add(self, **found: Tensor) -> None:
        for name, value in found.items():
            if name in self.sums:
                self.sums[name].add_(value)
            else:
                # Double holds every count exactly up to 2^53, and a sum of losses far better than a float does.
                self.sums[name] = value.double() if value.is_floating_point() else value.long()

    def join(self, everyone: Callable[[dict[str, Tensor]], list[dict[str, Tensor]]]) -> None:
        """With those of all processes; one that saw nothing has none."""
        found: dict[str, Tensor] = {}
        for each in everyone({name: value.cpu() for name, value in self.sums.items()}):
            for name, value in each.items():
                found[name] = found[name] + value if name in found else value
        self.sums = found

    def compute(self) -> dict[str, float]:
        """NaN where nothing was counted."""
        return {self.name: self.value() if self.sums else math.nan}

    def value(self) -> float:
        raise NotImplementedError


def ratio(above: Tensor, below: Tensor) -> Tensor:
    """0 where both are: who never named a class was never right about it."""
    return torch.where(below > 0, above / below.clamp(min=torch.finfo(torch.double).tiny), 0.0)
