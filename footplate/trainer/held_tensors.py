"""Tensors that callbacks hold, such as an average of the weights: part of every checkpoint, and what is evaluated."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from footplate.trainer import checkpoint as files

FILE = "callbacks.pt"

Held = dict[str, list[dict[str, Tensor]]]
"""By class name, in the order of the callbacks."""


class HoldsTensors:
    """Beside ExportableState, for what is too large for JSON."""

    def tensors(self) -> dict[str, Tensor]:
        """What goes into a checkpoint."""
        raise NotImplementedError(f"{type(self).__name__} must say what its tensors are")

    def load_tensors(self, tensors: dict[str, Tensor]) -> None:
        """Before a run goes on from a checkpoint that has them."""
        raise NotImplementedError(f"{type(self).__name__} must take its tensors back")

    def in_place(self) -> AbstractContextManager[Any]:
        """While the model is evaluated: whatever shall stand in its place."""
        return nullcontext()


def held(callbacks: Iterable[Any]) -> Held:
    found: Held = {}
    for each in callbacks:
        if isinstance(each, HoldsTensors):
            found.setdefault(type(each).__name__, []).append(each.tensors())
    return found


def read(folder: Path) -> Held:
    """Of a checkpoint; nothing where it was made without such callbacks."""
    found: Held = files.load_tensors(folder, FILE) if (folder / FILE).is_file() else {}
    return found


def restore(callbacks: Iterable[Any], stored: Held) -> None:
    left = {name: list(each) for name, each in stored.items()}
    for each in callbacks:
        mine = left.get(type(each).__name__)
        if isinstance(each, HoldsTensors) and mine:
            each.load_tensors(mine.pop(0))


@contextmanager
def in_place(callbacks: Iterable[Any]) -> Iterator[None]:
    with ExitStack() as stack:
        for each in callbacks:
            if isinstance(each, HoldsTensors):
                stack.enter_context(each.in_place())
        yield


@contextmanager
def swapped(model: nn.Module, others: dict[str, Tensor]) -> Iterator[None]:
    """The model with other weights, and then, to the last bit, with its own again."""
    own = {name: value.detach().clone() for name, value in model.named_parameters() if name in others}
    put(model, others)
    try:
        yield
    finally:
        put(model, own)


@torch.no_grad()
def put(model: nn.Module, weights: dict[str, Tensor]) -> None:
    for name, value in model.named_parameters():
        if name in weights:
            value.copy_(weights[name])
