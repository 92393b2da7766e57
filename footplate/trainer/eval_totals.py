"""Accumulates the results of an evaluation: the mean loss, the loss of each sample, and predictions."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy
import torch
from torch import Tensor

from footplate.trainer.losses.labels import IGNORE
from footplate.trainer.losses.loss import DICT
from footplate.trainer.strategies.peers import OneProcess

if TYPE_CHECKING:
    from footplate.trainer.trainer import Trainer

_BATCHES_ON_DEVICE = 256
"""The number of batches whose losses stay on the device before they are read or added up."""


class MeanLoss:
    """The mean of an evaluation's batch losses, weighted by samples. The result equals Hugging Face's exactly."""

    def __init__(self, *, leaves_out_not_finite: bool = False) -> None:
        self.samples = self.all_samples = 0
        self._leaves_out = leaves_out_not_finite
        self._on_device: list[Tensor] = []
        self._values: list[float] = []
        self._counts: list[int] = []

    def add(self, loss: Tensor | None, samples: int, weight: int) -> None:
        self.all_samples += samples
        if loss is None:
            return
        self.samples += samples
        self._on_device.append(loss)
        self._counts.append(weight)
        if len(self._on_device) >= _BATCHES_ON_DEVICE:
            self._read()

    def _read(self) -> None:
        if self._on_device:
            self._values += torch.stack(self._on_device).double().tolist()
            self._on_device.clear()

    def join(self, peers: OneProcess) -> None:
        """Adds the losses of the other processes, in the order in which a single process would read the batches."""
        if peers.world == 1:
            return
        self._read()
        states = peers.all_gather((self._values, self._counts, self.samples, self.all_samples))
        rounds = range(max(len(values) for values, *_ in states))
        losses = [(values[at], counts[at]) for at in rounds for values, counts, *_ in states if at < len(values)]
        self._values, self._counts = [value for value, _ in losses], [count for _, count in losses]
        self.samples, self.all_samples = sum(state[2] for state in states), sum(state[3] for state in states)

    def per_sample(self) -> Any:
        """Returns one value per sample, the mean loss of its batch."""
        self._read()
        return numpy.repeat(numpy.asarray(self._values, dtype=numpy.float32), self._counts)

    @property
    def left_out(self) -> int:
        """The number of batches whose loss was NaN or infinite, and which the mean leaves out."""
        self._read()
        finite = sum(map(math.isfinite, self._values))
        return len(self._values) - finite if self._leaves_out and finite else 0

    def mean(self) -> float:
        values = self.per_sample()
        finite = numpy.isfinite(values)
        return float((values[finite] if self._leaves_out and finite.any() else values).mean())


class ExactLoss:
    """The mean loss per label. For token tasks, unlike the mean per batch, it does not depend on the batch size."""

    def __init__(self) -> None:
        self._sums_and_counts: list[tuple[Tensor, Tensor]] = []

    def add(self, loss: Tensor | None, batch: Any, trainer: Trainer) -> None:
        labels = batch.get("labels") if isinstance(batch, DICT) else None
        if loss is None or not isinstance(labels, Tensor) or labels.dim() < 2 or labels.is_floating_point():
            return
        items = trainer._get_num_items_in_batch([batch], loss.device)
        if isinstance(items, Tensor):
            self._sums_and_counts.append((torch.where(items > 0, loss * items, 0.0), items))
        if len(self._sums_and_counts) >= _BATCHES_ON_DEVICE:
            self._sums_and_counts = [self._total()]

    def _total(self) -> tuple[Tensor, Tensor]:
        sums, counts = zip(*self._sums_and_counts, strict=True)
        return torch.stack([loss_sum.double() for loss_sum in sums]).sum(), torch.stack(counts).sum()

    def join(self, peers: OneProcess) -> None:
        if peers.world == 1:
            return
        total = self._total() if self._sums_and_counts else None
        totals = peers.all_gather(None if total is None else (total[0].cpu(), total[1].cpu()))
        self._sums_and_counts = [process_total for process_total in totals if process_total is not None]

    def values(self, samples: int) -> dict[str, float]:
        """Returns the mean as `loss_exact`. Returns {} without labels.

        Also returns {} if there is one label per sample, because the mean per batch is exact then.
        """
        if not self._sums_and_counts:
            return {}
        total, count = (float(value) for value in self._total())
        return {"loss_exact": total / count} if count and count != samples else {}


class CollectedOutputs:
    """Collects a model's outputs. After every `batches_on_device` batches, they are copied to the host."""

    def __init__(self, batches_on_device: int, *, joins: bool = True) -> None:
        self._batches_on_device, self._joins = batches_on_device, joins
        self._on_device: list[Any] = []
        self._on_host: list[Any] = []

    def add(self, value: Any) -> None:
        if value is None:
            return
        self._on_device.append(value)
        if len(self._on_device) >= self._batches_on_device:
            self._move()

    def _move(self) -> None:
        self._on_host += [_on_host(value) for value in self._on_device]
        self._on_device.clear()

    def arrays(self) -> Any:
        self._move()
        if not self._joins:
            return self._on_host or None
        return _joined(self._on_host)


def _on_host(value: Any) -> Any:
    if isinstance(value, Tensor):
        value = value.detach()
        return (value.float() if value.dtype is torch.bfloat16 else value).cpu().numpy()
    if isinstance(value, Mapping):
        return {name: _on_host(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return tuple(_on_host(item) for item in value)
    return value


def _joined(outputs: list[Any]) -> Any:
    """Joins the arrays of all batches along the first dimension. Shorter sequences get -100 on the right."""
    # A model's outputs may contain None for values that it did not compute.
    if not outputs or outputs[0] is None:
        return None
    if isinstance(outputs[0], dict):
        return {name: _joined([output[name] for output in outputs]) for name in outputs[0]}
    if isinstance(outputs[0], tuple):
        return tuple(_joined(list(items)) for items in zip(*outputs, strict=True))
    if outputs[0].ndim == 0:
        return numpy.stack(outputs)
    if outputs[0].ndim > 1:
        widest = max(array.shape[1] for array in outputs)
        outputs = [_padded(array, widest) for array in outputs]
    return numpy.concatenate(outputs)


def _padded(array: Any, width: int) -> Any:
    padding = [(0, 0), (0, width - array.shape[1]), *([(0, 0)] * (array.ndim - 2))]
    return numpy.pad(array, padding, constant_values=IGNORE) if array.shape[1] < width else array
