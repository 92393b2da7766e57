"""Gathers an evaluation's outputs for one batch from all processes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from footplate.trainer.strategies.device_copy import map_tensors, tensors_in
from footplate.trainer.strategies.peers import OneProcess


def gather_values(value: Any, peers: OneProcess, *, counts: bool, objects: bool) -> list[Any]:
    """Returns the values of all processes by rank, without those of processes that pass `counts` as False.

    All values have the same structure. Tensors are sent from device to device, and may differ in shape. With
    `objects`, values of any type are pickled.
    """
    if objects:
        values = peers.all_gather((counts, map_tensors(value, lambda leaf: leaf.cpu())))
        return [value for is_counted, value in values if is_counted]
    leaves = tensors_in(value)
    layouts = peers.all_gather((counts, [tuple(leaf.shape) for leaf in leaves]))
    columns = [gather_tensor(leaf, [shapes[at] for _, shapes in layouts], peers) for at, leaf in enumerate(leaves)]
    result = []
    for rank, (is_counted, _) in enumerate(layouts):
        own_leaves = iter([column[rank] for column in columns])
        if is_counted:
            result.append(map_tensors(value, lambda leaf, own_leaves=own_leaves: next(own_leaves)))  # type: ignore[misc]
    return result


def gather_tensor(leaf: Tensor, shapes: list[tuple[int, ...]], peers: OneProcess) -> list[Tensor]:
    """Gathers tensors that differ in shape: each is padded to the largest sizes, and cut back after the collective."""
    box = tuple(max(sizes) for sizes in zip(*shapes, strict=True))
    padded = leaf.detach()
    if tuple(leaf.shape) != box:
        padded = leaf.new_zeros(box)
        padded[tuple(slice(size) for size in leaf.shape)] = leaf
    received = [torch.empty_like(padded, memory_format=torch.contiguous_format) for _ in shapes]
    dist.all_gather(received, padded.contiguous(), group=peers.group_of(padded))
    return [tensor[tuple(slice(size) for size in shape)] for tensor, shape in zip(received, shapes, strict=True)]


def require_tensors(value: Any) -> None:
    """Raises TypeError for predictions that are neither tensors nor None, because only tensors are sent unpickled."""
    if value is None or isinstance(value, Tensor):
        return
    if isinstance(value, (Mapping, list, tuple)):
        for item in value.values() if isinstance(value, Mapping) else value:
            require_tensors(item)
        return
    raise TypeError(
        f"a prediction holds a {type(value).__name__}, and processes send each other only tensors: set "
        "eval_use_gather_object=True, which pickles predictions"
    )
