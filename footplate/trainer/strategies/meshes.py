"""Groups tensors by device mesh, because torch's foreach operations take tensors of one mesh only."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer


def by_mesh(tensors: Iterable[Tensor]) -> list[list[Tensor]]:
    parts: dict[Any, list[Tensor]] = {}
    for tensor in tensors:
        parts.setdefault(tensor.device_mesh if isinstance(tensor, DTensor) else None, []).append(tensor)
    return list(parts.values())


def clip(parameters: list[nn.Parameter], max_norm: float) -> Tensor:
    """Clips the gradients by their norm over all meshes and processes."""
    parts = by_mesh(parameter.grad for parameter in parameters if parameter.grad is not None)
    norms = [_whole(torch.nn.utils.get_total_norm(part)) for part in parts]
    norm = torch.linalg.vector_norm(torch.stack(norms)) if norms else torch.tensor(0.0)
    factor = torch.clamp(max_norm / (norm + 1e-6), max=1.0)
    for part in parts:
        torch._foreach_mul_(part, factor)
    return norm


def _whole(norm: Tensor) -> Tensor:
    return norm.full_tensor() if isinstance(norm, DTensor) else norm


class StepByMesh:
    """Steps an optimizer whose groups are split by mesh during the step. Its state and checkpoints do not change."""

    def __init__(self, optimizer: Optimizer) -> None:
        self.optimizer = optimizer

    def step(self) -> None:
        groups = self.optimizer.param_groups
        parts = [[{**group, "params": part} for part in by_mesh(group["params"])] for group in groups]
        self.optimizer.param_groups = [part for group_parts in parts for part in group_parts]
        try:
            self.optimizer.step()
        finally:
            self.optimizer.param_groups = groups
        for group, cut in zip(groups, parts, strict=True):
            # Some optimizers keep a step count in their groups; it is the same in every part.
            group.update({name: value for part in cut[:1] for name, value in part.items() if name != "params"})
