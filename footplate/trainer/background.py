"""A checkpoint that is written beside training: the loop waits for the copy, another thread for the disk."""

from __future__ import annotations

import copy
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from torch import Tensor

from footplate.trainer.checkpoint import Checkpoint


class Background:
    """At most one save is under way. Who wants another, or an end, waits for it."""

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
        """Waits, and raises what writing raised."""
        under_way, self._under_way = self._under_way, None
        assert under_way is not None
        return under_way.result()


def copied(value: Any, seen: dict[tuple[Any, ...], Tensor] | None = None) -> Any:
    """On the host, and nobody else's. Tensors that are one stay one: tied weights are told by that."""
    seen = {} if seen is None else seen
    if isinstance(value, Tensor):
        place = (value.device, value.data_ptr(), value.shape, value.stride(), value.dtype)
        if place not in seen or not value.numel():
            seen[place] = value.detach().to("cpu", copy=True)
        return seen[place]
    if isinstance(value, dict):
        return type(value)((name, copied(each, seen)) for name, each in value.items())
    if isinstance(value, (list, tuple)) and not hasattr(value, "_fields"):
        return type(value)(copied(each, seen) for each in value)
    return copy.deepcopy(value)
