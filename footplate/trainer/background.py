"""Writes checkpoints in a thread. The training loop waits only until the tensors are copied to host memory."""

from __future__ import annotations

import copy
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from torch import Tensor

from footplate.trainer.checkpoint import Checkpoint


class Background:
    """A thread that writes at most one checkpoint at a time."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._under_way: Future[Checkpoint] | None = None
        self.step = 0

    def start(self, step: int, write: Callable[[], Checkpoint]) -> None:
        self.step, self._under_way = step, self._threads.submit(write)

    @property
    def is_under_way(self) -> bool:
        return self._under_way is not None

    @property
    def is_done(self) -> bool:
        return self._under_way is not None and self._under_way.done()

    def result(self) -> Checkpoint:
        """Waits for the save, and raises its error if it failed."""
        under_way, self._under_way = self._under_way, None
        assert under_way is not None
        return under_way.result()


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
