"""Batches to the device. To a GPU on a stream of its own: the host is steps ahead of the GPU, so a batch is copied
beside what is still computed of the steps before it, and only what reads it waits for it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor


class Beside:
    """Copies from pinned memory, without making the host wait, to one GPU."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def __call__(self, value: Any) -> Any:
        with torch.cuda.stream(self.stream):
            copied = moved(value, self.device)
        now = torch.cuda.current_stream(self.device)
        now.wait_stream(self.stream)
        _record(copied, now)
        return copied


def moved(value: Any, device: torch.device) -> Any:
    """Tensors on the device, wherever in dicts, lists and tuples they stand."""
    return changed(value, lambda tensor: tensor.to(device, non_blocking=True))


def in_type(value: Any, dtype: torch.dtype) -> Any:
    """Floating-point tensors in another type, wherever in dicts, lists and tuples they stand."""
    return changed(value, lambda tensor: tensor.to(dtype) if tensor.is_floating_point() else tensor)


def changed(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """The same dicts, lists and tuples, with `change` called on every tensor in them."""
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, Mapping):
        return {name: changed(each, change) for name, each in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(changed(each, change) for each in value))
    if isinstance(value, (list, tuple)):
        return type(value)(changed(each, change) for each in value)
    return value


def _record(value: Any, stream: torch.cuda.Stream) -> None:
    """Its memory is the other stream's, and may be that stream's again only when this one has read it."""
    if isinstance(value, Tensor):
        value.record_stream(stream)
    elif isinstance(value, Mapping):
        for each in value.values():
            _record(each, stream)
    elif isinstance(value, (list, tuple)):
        for each in value:
            _record(each, stream)
