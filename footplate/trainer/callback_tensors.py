"""Tensors that callbacks keep, such as an average of the weights. Checkpoints store these tensors."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from footplate.trainer import checkpoint as files

FILE = "callbacks.pt"

CallbackTensors = dict[str, list[dict[str, Tensor]]]
"""The tensors by class name, in the order of the callbacks."""


class HoldsTensors:
    """The base of callbacks whose tensors a checkpoint stores. `ExportableState` stores only small values, as JSON."""

    def tensors(self) -> dict[str, Tensor]:
        """Returns the tensors for a checkpoint."""
        raise NotImplementedError(f"{type(self).__name__} needs a method tensors(), which returns its tensors")

    def load_tensors(self, tensors: dict[str, Tensor]) -> None:
        """Restores the tensors before a run continues from a checkpoint that has them."""
        raise NotImplementedError(f"{type(self).__name__} needs a method load_tensors(tensors)")

    def in_place(self) -> AbstractContextManager[Any]:
        """Returns a context in which an evaluation runs, for example with averaged weights in the model."""
        return nullcontext()


def collect(callbacks: Iterable[Any]) -> CallbackTensors:
    tensors: CallbackTensors = {}
    for callback in callbacks:
        if isinstance(callback, HoldsTensors):
            tensors.setdefault(type(callback).__name__, []).append(callback.tensors())
    return tensors


def read(folder: Path) -> CallbackTensors:
    """Returns the callbacks' tensors that a checkpoint stores, or an empty dict if there are none."""
    tensors: CallbackTensors = files.load_tensors(folder, FILE) if (folder / FILE).is_file() else {}
    return tensors


def restore(callbacks: Iterable[Any], stored: CallbackTensors) -> None:
    remaining = {name: list(states) for name, states in stored.items()}
    for callback in callbacks:
        states = remaining.get(type(callback).__name__)
        if isinstance(callback, HoldsTensors) and states:
            callback.load_tensors(states.pop(0))


@contextmanager
def in_place(callbacks: Iterable[Any]) -> Iterator[None]:
    with ExitStack() as stack:
        for callback in callbacks:
            if isinstance(callback, HoldsTensors):
                stack.enter_context(callback.in_place())
        yield


@contextmanager
def swapped(model: nn.Module, weights: dict[str, Tensor]) -> Iterator[None]:
    """Replaces the model's weights by `weights` inside the `with` block, and then restores them exactly."""
    originals = {name: value.detach().clone() for name, value in model.named_parameters() if name in weights}
    put(model, weights)
    try:
        yield
    finally:
        put(model, originals)


@torch.no_grad()
def put(model: nn.Module, weights: dict[str, Tensor]) -> None:
    for name, value in model.named_parameters():
        if name in weights:
            value.copy_(weights[name])
