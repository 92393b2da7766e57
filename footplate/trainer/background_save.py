"""Writes checkpoints in a thread. The training loop waits only until the tensors are copied to host memory."""

from __future__ import annotations

import copy
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from footplate.trainer.checkpoint import Checkpoint


@dataclass(frozen=True, slots=True)
class BackgroundSave:
    """A checkpoint that a thread writes."""

    step: int
    checkpoint: Future[Checkpoint]

    @classmethod
    def start(cls, step: int, write: Callable[[], Checkpoint]) -> BackgroundSave:
        threads = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        checkpoint = threads.submit(write)
        threads.shutdown(wait=False)
        return cls(step, checkpoint)


def copied(value: Any, copies: dict[tuple[Any, ...], Tensor] | None = None) -> Any:
    """Copies a nested value, with all tensors on the host. Tied tensors become one tensor, as they were before."""
    copies = {} if copies is None else copies
    if isinstance(value, Tensor):
        place = (value.device, value.data_ptr(), value.shape, value.stride(), value.dtype)
        if place not in copies or not value.numel():
            copies[place] = value.detach().to("cpu", copy=True)
        return copies[place]
    if isinstance(value, dict):
        return type(value)((name, copied(item, copies)) for name, item in value.items())
    if isinstance(value, (list, tuple)) and not hasattr(value, "_fields"):
        return type(value)(copied(item, copies) for item in value)
    return copy.deepcopy(value)
