"""The computations of the losses in `losses.py`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from footplate.trainer.losses.labels import IGNORE, BadLabel
from footplate.trainer.losses.loss import Loss, items, logits_of, regression, shifted

Kind = Callable[[Tensor, Tensor], Loss]


@dataclass
class OfLogits:
    """A `compute_loss_func` for the Trainer, which returns the micro-batch's share of the step's loss."""

    kind: Kind
    shifts_labels: bool = False
    """True if the logits of one position predict the next label, which follows from the model's class."""

    def __call__(self, outputs: Any, labels: Tensor | None, num_items_in_batch: Tensor | int | None = None) -> Tensor:
        if labels is None:
            raise ValueError("the loss compares logits with labels, but the batch has no key labels")
        if isinstance(outputs, Mapping) and "logits" not in outputs:
            raise ValueError(f"the loss needs a model's logits, but this model returned: {', '.join(outputs)}")
        logits = logits_of(outputs)
        if self.shifts_labels:
            logits, labels = shifted(logits, labels)
        return self.kind(logits, labels).over(num_items_in_batch)


@dataclass
class PerClass:
    """The factors of classes, as a tensor on the device of the logits."""

    values: Sequence[float] | None
    _there: dict[torch.device, Tensor] = field(default_factory=dict)

    def on(self, logits: Tensor) -> Tensor | None:
        if self.values is None:
            return None
        if len(self.values) != logits.shape[-1]:
            raise ValueError(f"the loss has {len(self.values)} weights, and the model {logits.shape[-1]} classes")
        if logits.device not in self._there:
            self._there[logits.device] = torch.tensor(self.values, device=logits.device)
        return self._there[logits.device]


class CrossEntropy:
    def __init__(self, label_smoothing: float, weights: Sequence[float] | None) -> None:
        if not 0 <= label_smoothing <= 1:
            raise ValueError(f"label_smoothing is a share, from 0 to 1. It is {label_smoothing}")
        self.label_smoothing, self.weights = label_smoothing, PerClass(weights)

    def __call__(self, logits: Tensor, labels: Tensor) -> Loss:
        logits, labels = _flat(logits, labels)
        total = functional.cross_entropy(
            logits,
            labels,
            self.weights.on(logits),
            ignore_index=IGNORE,
            reduction="sum",
            label_smoothing=self.label_smoothing,
        )
        return Loss(total, items(labels))


class Focal:
    def __init__(self, gamma: float, weights: Sequence[float] | None) -> None:
        if gamma < 0:
            raise ValueError(f"gamma must be 0 or more. It is {gamma}")
        self.gamma, self.weights = gamma, PerClass(weights)

    def __call__(self, logits: Tensor, labels: Tensor) -> Loss:
        logits, labels = _flat(logits, labels)
        costs = functional.cross_entropy(logits, labels, ignore_index=IGNORE, reduction="none")
        # Ignored labels cost 0, and (1 - exp(0)) is 0 too. They are not a valid index, so they become class 0.
        losses = costs if self.gamma == 0 else (1 - torch.exp(-costs)).pow(self.gamma) * costs
        weights = self.weights.on(logits)
        if weights is not None:
            losses = losses * weights[labels.clamp(min=0)]
        return Loss(losses.sum(), items(labels))


class BinaryCrossEntropy:
    def __init__(self, pos_weight: Sequence[float] | None) -> None:
        self.pos_weight = PerClass(pos_weight)

    def __call__(self, logits: Tensor, labels: Tensor) -> Loss:
        weights = self.pos_weight.on(logits)
        logits = _alike("bce", logits, labels)
        total = functional.binary_cross_entropy_with_logits(
            logits.float(), labels.float(), pos_weight=weights, reduction="sum"
        )
        return Loss(total, labels.numel())


class Huber:
    def __init__(self, delta: float) -> None:
        if delta <= 0:
            raise ValueError(f"delta must be more than 0. It is {delta}")
        self.delta = delta

    def __call__(self, logits: Tensor, labels: Tensor) -> Loss:
        logits = _alike("huber", logits, labels)
        total = functional.huber_loss(logits, labels.to(logits.dtype), reduction="sum", delta=self.delta)
        return Loss(total, labels.numel())


def squared(logits: Tensor, labels: Tensor) -> Loss:
    return regression(_alike("mse", logits, labels), labels)


def absolute(logits: Tensor, labels: Tensor) -> Loss:
    logits = _alike("l1", logits, labels)
    return Loss(functional.l1_loss(logits, labels.to(logits.dtype), reduction="sum"), labels.numel())


def _flat(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Returns logits and labels with one dimension of samples. A label out of range raises an error that names it."""
    if labels.is_floating_point() or logits.shape[:-1] != labels.shape:
        raise ValueError(
            f"this loss needs a class, a whole number, for each position of the logits: logits have the shape "
            f"{tuple(logits.shape)}, labels {tuple(labels.shape)} of {labels.dtype}"
        )
    logits, labels = logits.reshape(-1, logits.shape[-1]).float(), labels.reshape(-1)
    if labels.device.type == "cpu":
        BadLabel.refuse("labels", labels, logits.shape[-1])
    return logits, labels


def _alike(name: str, logits: Tensor, labels: Tensor) -> Tensor:
    """Drops a last dimension of 1, because (8, 1) and (8,) would broadcast to (8, 8)."""
    if logits.shape == (*labels.shape, 1):
        logits = logits.squeeze(-1)
    if logits.shape != labels.shape:
        raise ValueError(
            f"{name} compares number by number: logits have the shape {tuple(logits.shape)}, labels "
            f"{tuple(labels.shape)}"
        )
    return logits
