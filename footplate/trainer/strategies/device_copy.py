"""Copies batches to the device.

For a GPU, the copy runs on a CUDA stream of its own. The host is some steps ahead of the GPU, so a batch is copied
while earlier steps are computed. Only the kernels that read the batch wait for the copy.
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
        compute_stream = torch.cuda.current_stream(self.device)
        compute_stream.wait_stream(self.stream)
        # Keeps the copy stream from reusing the tensors' memory before this stream has read them.
        for tensor in tensors_in(copied):
            tensor.record_stream(compute_stream)
        return copied


def moved(value: Any, device: torch.device) -> Any:
    """Returns the value with its tensors on the device, inside dicts, lists and tuples of any depth."""
    return map_tensors(value, lambda tensor: tensor.to(device, non_blocking=True))


def tensors_in(value: Any) -> list[Tensor]:
    """Returns the tensors inside dicts, lists and tuples of any depth."""
    if isinstance(value, Tensor):
        return [value]
    items = value.values() if isinstance(value, Mapping) else value if isinstance(value, (list, tuple)) else ()
    return [tensor for item in items for tensor in tensors_in(item)]


def map_tensors(value: Any, change: Callable[[Tensor], Any]) -> Any:
    """Returns the same dicts, lists and tuples, with the result of `change` in place of every tensor."""
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, Mapping):
        return {name: map_tensors(item, change) for name, item in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(map_tensors(item, change) for item in value))
    if isinstance(value, (list, tuple)):
        return type(value)(map_tensors(item, change) for item in value)
    return value
