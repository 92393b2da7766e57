"""Losses that a spec may name under `loss`. Such a loss replaces the model's own loss.

A loss is computed from the model's `logits` and the batch's `labels`. The result is two numbers: the sum of the losses
of all labels, and the number of labels. So a step does not depend on the size of its micro-batches. Losses over classes
leave out labels of -100.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import torch
from torch import Tensor
from torch.nn import functional

from footplate.components.component import component
from footplate.trainer.losses.labels import IGNORE, bad_label
from footplate.trainer.losses.loss import Loss, items, logits_of, regression, shifted


class LogitsLoss:
    """The base of losses of logits and labels. The Trainer calls its objects as `compute_loss_func`."""

    shifts_labels = False
    """True if the logits of one position predict the next label. The runtime sets it from the model's class."""

    def __call__(self, outputs: Any, labels: Tensor | None, num_items_in_batch: Tensor | int | None = None) -> Tensor:
        if labels is None:
            raise ValueError("the loss compares logits with labels, but the batch has no `labels`")
        if isinstance(outputs, Mapping) and "logits" not in outputs:
            raise ValueError(f"the loss needs a model's logits, but this model returned: {', '.join(outputs)}")
        logits = logits_of(outputs)
        if self.shifts_labels:
            logits, labels = shifted(logits, labels)
        return self.loss(logits, labels).over(num_items_in_batch)

    def loss(self, logits: Tensor, labels: Tensor) -> Loss:
        raise NotImplementedError


class ClassWeights:
    """The weights of the classes, as a tensor that is moved to the device of the logits."""

    def __init__(self, values: Sequence[float] | None) -> None:
        self._values = None if values is None else torch.tensor(values)

    def on(self, logits: Tensor) -> Tensor | None:
        if self._values is None:
            return None
        if len(self._values) != logits.shape[-1]:
            raise ValueError(f"the loss has {len(self._values)} weights, but the model has {logits.shape[-1]} classes")
        self._values = self._values.to(logits.device)
        return self._values


class CrossEntropy(LogitsLoss):
    def __init__(self, label_smoothing: float = 0.0, weights: Sequence[float] | None = None) -> None:
        if not 0 <= label_smoothing <= 1:
            raise ValueError(f"label_smoothing must be from 0 to 1. It is {label_smoothing}")
        self.label_smoothing, self.weights = label_smoothing, ClassWeights(weights)

    def loss(self, logits: Tensor, labels: Tensor) -> Loss:
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


class Focal(LogitsLoss):
    def __init__(self, gamma: float = 2.0, weights: Sequence[float] | None = None) -> None:
        if gamma < 0:
            raise ValueError(f"gamma must be 0 or more. It is {gamma}")
        self.gamma, self.weights = gamma, ClassWeights(weights)

    def loss(self, logits: Tensor, labels: Tensor) -> Loss:
        logits, labels = _flat(logits, labels)
        costs = functional.cross_entropy(logits, labels, ignore_index=IGNORE, reduction="none")
        # Ignored labels cost 0, and (1 - exp(0)) is 0 too. They are not a valid index, so they become class 0.
        losses = costs if self.gamma == 0 else (1 - torch.exp(-costs)).pow(self.gamma) * costs
        weights = self.weights.on(logits)
        if weights is not None:
            losses = losses * weights[labels.clamp(min=0)]
        return Loss(losses.sum(), items(labels))


class BinaryCrossEntropy(LogitsLoss):
    def __init__(self, pos_weight: Sequence[float] | None = None) -> None:
        self.pos_weight = ClassWeights(pos_weight)

    def loss(self, logits: Tensor, labels: Tensor) -> Loss:
        weights = self.pos_weight.on(logits)
        logits = _alike("bce", logits, labels)
        total = functional.binary_cross_entropy_with_logits(
            logits.float(), labels.float(), pos_weight=weights, reduction="sum"
        )
        return Loss(total, labels.numel())


class Huber(LogitsLoss):
    def __init__(self, delta: float = 1.0) -> None:
        if delta <= 0:
            raise ValueError(f"delta must be more than 0. It is {delta}")
        self.delta = delta

    def loss(self, logits: Tensor, labels: Tensor) -> Loss:
        logits = _alike("huber", logits, labels)
        total = functional.huber_loss(logits, labels.to(logits.dtype), reduction="sum", delta=self.delta)
        return Loss(total, labels.numel())


class SquaredError(LogitsLoss):
    def loss(self, logits: Tensor, labels: Tensor) -> Loss:
        return regression(_alike("mse", logits, labels), labels)


class AbsoluteError(LogitsLoss):
    def loss(self, logits: Tensor, labels: Tensor) -> Loss:
        logits = _alike("l1", logits, labels)
        return Loss(functional.l1_loss(logits, labels.to(logits.dtype), reduction="sum"), labels.numel())


def _flat(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Returns logits of shape (positions, classes) and labels of shape (positions). The labels must be classes."""
    if labels.is_floating_point() or logits.shape[:-1] != labels.shape:
        raise ValueError(
            f"this loss needs a class, a whole number, for each position of the logits: logits have the shape "
            f"{tuple(logits.shape)}, labels {tuple(labels.shape)} of {labels.dtype}"
        )
    logits, labels = logits.reshape(-1, logits.shape[-1]).float(), labels.reshape(-1)
    if labels.device.type == "cpu" and (error := bad_label("labels", labels, logits.shape[-1])):
        raise error
    return logits, labels


def _alike(name: str, logits: Tensor, labels: Tensor) -> Tensor:
    """Returns the logits in the shape of the labels, without a last dimension of 1.

    Raises ValueError if the shapes still differ.
    """
    if logits.shape == (*labels.shape, 1):
        logits = logits.squeeze(-1)
    if logits.shape != labels.shape:
        raise ValueError(
            f"{name} needs logits and labels of the same shape: logits have the shape {tuple(logits.shape)}, labels "
            f"{tuple(labels.shape)}"
        )
    return logits


Weights = Annotated[list[float] | None, "A factor for each class; null is 1 for all"]

cross_entropy = component(
    CrossEntropy,
    "Cross entropy for classes of samples or tokens: a mean over labels, also with class weights.",
    label_smoothing=Annotated[float, "Share of each label that is spread over all classes"],
    weights=Weights,
)
focal = component(
    Focal,
    "Focal loss: cross entropy in which badly predicted labels count more (arXiv:1708.02002).",
    gamma=Annotated[float, "How strongly the loss of labels that are predicted well is reduced; 0 is cross entropy"],
    weights=Weights,
)
bce = component(
    BinaryCrossEntropy,
    "Binary cross entropy, for several labels per sample that are 0 or 1.",
    pos_weight=Annotated[list[float] | None, "A factor for each class's positive labels; null is 1 for all"],
)
mse = component(SquaredError, "The mean of squared errors, for regression.")
l1 = component(AbsoluteError, "The mean of absolute errors, for regression.")
huber = component(
    Huber,
    "Huber loss: squared for small errors, absolute for large ones.",
    delta=Annotated[float, "The error up to which the loss is squared"],
)
