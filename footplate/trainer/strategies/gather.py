"""What an evaluation saw of a round of batches, in every process."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from footplate.trainer.strategies.peers import Alone


def everyones(value: Any, peers: Alone, *, counts: bool, objects: bool) -> list[Any]:
    """Each process's value, in their order, without those that do not count. All have the same structure.

    Tensors go from device to device, whatever their shapes. With `objects` they are pickled, and anything goes.
    """
    if objects:
        found = peers.everyone((counts, mapped(value, lambda leaf: leaf.cpu())))
        return [each for there, each in found if there]
    leaves: list[Tensor] = []
    mapped(value, leaves.append)
    told = peers.everyone((counts, [tuple(leaf.shape) for leaf in leaves]))
    columns = [leaf_of_each(leaf, [shapes[at] for _, shapes in told], peers) for at, leaf in enumerate(leaves)]
    result = []
    for rank, (there, _) in enumerate(told):
        own = iter([column[rank] for column in columns])
        if there:
            result.append(mapped(value, lambda leaf, own=own: next(own)))  # type: ignore[misc]
    return result


def leaf_of_each(leaf: Tensor, shapes: list[tuple[int, ...]], peers: Alone) -> list[Tensor]:
    """In boxes of one size, as collectives want them, and out of them again."""
    box = tuple(max(sizes) for sizes in zip(*shapes, strict=True))
    padded = leaf.detach()
    if tuple(leaf.shape) != box:
        padded = leaf.new_zeros(box)
        padded[tuple(slice(size) for size in leaf.shape)] = leaf
    received = [torch.empty_like(padded, memory_format=torch.contiguous_format) for _ in shapes]
    dist.all_gather(received, padded.contiguous(), group=peers.way_of(padded))
    return [each[tuple(slice(size) for size in shape)] for each, shape in zip(received, shapes, strict=True)]


def mapped(value: Any, change: Callable[[Tensor], Any]) -> Any:
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, Mapping):
        return {name: mapped(each, change) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        return tuple(mapped(each, change) for each in value)
    return value


def refuse_objects(value: Any) -> None:
    """Numbers and nothing are the same everywhere only by chance, and anything else has no way to travel."""
    if value is None or isinstance(value, Tensor):
        return
    if isinstance(value, (Mapping, list, tuple)):
        for each in value.values() if isinstance(value, Mapping) else value:
            refuse_objects(each)
        return
    raise TypeError(
        f"a prediction holds a {type(value).__name__}, and only tensors travel between processes: set "
        "eval_use_gather_object=True, which pickles what is predicted"
    )
