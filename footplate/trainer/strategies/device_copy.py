"""Copies batches to the device.

A GPU gets its batches on a separate stream. The host is some steps ahead of the GPU, so a batch is copied while earlier
steps are computed. Only the kernels that read the batch wait for the copy.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor


class StreamCopy:
    """Copies values from pinned memory to one GPU, without making the host wait."""

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
    """Returns the value with its tensors on the device, inside dicts, lists and tuples of any depth."""
    return changed(value, lambda tensor: tensor.to(device, non_blocking=True))


def in_type(value: Any, dtype: torch.dtype) -> Any:
    """Returns the value with floating-point tensors in another type, inside dicts, lists and tuples of any depth."""
    return changed(value, lambda tensor: tensor.to(dtype) if tensor.is_floating_point() else tensor)


def changed(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """Returns the same dicts, lists and tuples, with `change` called on every tensor in them."""
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, Mapping):
        return {name: changed(item, change) for name, item in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(changed(item, change) for item in value))
    if isinstance(value, (list, tuple)):
        return type(value)(changed(item, change) for item in value)
    return value


def _record(value: Any, stream: torch.cuda.Stream) -> None:
    """Keeps the copy stream from reusing the tensors' memory before this stream has read them."""
    if isinstance(value, Tensor):
        value.record_stream(stream)
    elif isinstance(value, Mapping):
        for item in value.values():
            _record(item, stream)
    elif isinstance(value, (list, tuple)):
        for item in value:
            _record(item, stream)
