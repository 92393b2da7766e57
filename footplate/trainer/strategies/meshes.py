"""Tensors that live on several meshes, and others on none: torch's operations on many tensors at once take one kind."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer


def by_mesh(tensors: Iterable[Tensor]) -> list[list[Tensor]]:
    parts: dict[Any, list[Tensor]] = {}
    for each in tensors:
        parts.setdefault(each.device_mesh if isinstance(each, DTensor) else None, []).append(each)
    return list(parts.values())


def clip(parameters: list[nn.Parameter], max_norm: float) -> Tensor:
    """By the norm over all of them, the whole of each."""
    parts = by_mesh(each.grad for each in parameters if each.grad is not None)
    norms = [_whole(torch.nn.utils.get_total_norm(part)) for part in parts]
    norm = torch.linalg.vector_norm(torch.stack(norms)) if norms else torch.tensor(0.0)
    factor = torch.clamp(max_norm / (norm + 1e-6), max=1.0)
    for part in parts:
        torch._foreach_mul_(part, factor)
    return norm


def _whole(norm: Tensor) -> Tensor:
    return norm.full_tensor() if isinstance(norm, DTensor) else norm


class ByMesh:
    """Steps an optimizer whose groups, for that time, are cut by mesh. Its state and its files know nothing of it."""

    def __init__(self, optimizer: Optimizer) -> None:
        self.optimizer = optimizer

    def step(self) -> None:
        groups = self.optimizer.param_groups
        parts = [[{**group, "params": part} for part in by_mesh(group["params"])] for group in groups]
        self.optimizer.param_groups = [part for each in parts for part in each]
        try:
            self.optimizer.step()
        finally:
            self.optimizer.param_groups = groups
        for group, cut in zip(groups, parts, strict=True):
            # Some optimizers count in their groups; every part has counted alike.
            group.update({name: value for part in cut[:1] for name, value in part.items() if name != "params"})
