"""Groups tensors by device mesh, because torch's foreach operations take tensors of one mesh only."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer


def by_mesh(tensors: Iterable[Tensor]) -> list[list[Tensor]]:
    meshes: dict[Any, list[Tensor]] = {}
    for tensor in tensors:
        meshes.setdefault(tensor.device_mesh if isinstance(tensor, DTensor) else None, []).append(tensor)
    return list(meshes.values())


def clip(parameters: list[nn.Parameter], max_norm: float) -> Tensor:
    """Clips the gradients by their norm over all meshes and processes."""
    meshes = by_mesh(parameter.grad for parameter in parameters if parameter.grad is not None)
    norms = [_whole(torch.nn.utils.get_total_norm(gradients)) for gradients in meshes]
    norm = torch.linalg.vector_norm(torch.stack(norms)) if norms else torch.tensor(0.0)
    factor = torch.clamp(max_norm / (norm + 1e-6), max=1.0)
    for gradients in meshes:
        torch._foreach_mul_(gradients, factor)
    return norm


def _whole(norm: Tensor) -> Tensor:
    return norm.full_tensor() if isinstance(norm, DTensor) else norm


class StepByMesh:
    """Steps an optimizer. During the step, each parameter group is split into one group per mesh."""

    def __init__(self, optimizer: Optimizer) -> None:
        self.optimizer = optimizer

    def step(self) -> None:
        groups = self.optimizer.param_groups
        split_groups = [
            [{**group, "params": parameters} for parameters in by_mesh(group["params"])] for group in groups
        ]
        self.optimizer.param_groups = [subgroup for subgroups in split_groups for subgroup in subgroups]
        try:
            self.optimizer.step()
        finally:
            self.optimizer.param_groups = groups
        for group, subgroups in zip(groups, split_groups, strict=True):
            # Some optimizers keep a step count in their groups. It is the same in every subgroup.
            first = subgroups[0] if subgroups else {}
            group.update({name: value for name, value in first.items() if name != "params"})
