"""Losses that a spec may name under `loss`. Such a loss replaces the model's own loss.

A loss is computed from the model's `logits` and the batch's `labels`. The result is two numbers: the sum of the losses
of all labels, and the number of labels. So a step does not depend on the size of its micro-batches. Losses over classes
leave out labels of -100.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Annotated, Any

import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional

from footplate.components.component import component
from footplate.trainer.losses.labels import IGNORE, bad_label
from footplate.trainer.losses.loss import Loss, in_shape_of, items, logits_of, shifted


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
        logits = in_shape_of(labels, logits, "bce")
        total = functional.binary_cross_entropy_with_logits(
            logits.float(), labels.float(), pos_weight=weights, reduction="sum"
        )
        return Loss(total, labels.numel())


class Regression(LogitsLoss):
    """A loss of torch that compares each number of the logits with a label."""

    def __init__(self, name: str, function: Callable[..., Tensor]) -> None:
        self.name, self.function = name, function

    def loss(self, logits: Tensor, labels: Tensor) -> Loss:
        logits = in_shape_of(labels, logits, self.name)
        return Loss(self.function(logits, labels.to(logits.dtype), reduction="sum"), labels.numel())


def _huber(delta: float = 1.0) -> Regression:
    return Regression("huber", partial(functional.huber_loss, delta=delta))


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


Weights = Annotated[list[float] | None, "A factor for each class; null is 1 for all"]

cross_entropy = component(
    CrossEntropy,
    "Cross entropy for classes of samples or tokens: a mean over labels, also with class weights.",
    label_smoothing=Annotated[float, Field(ge=0, le=1), "Share of each label that is spread over all classes"],
    weights=Weights,
)
focal = component(
    Focal,
    "Focal loss: cross entropy in which badly predicted labels count more (arXiv:1708.02002).",
    gamma=Annotated[
        float, Field(ge=0), "How strongly the loss of labels that are predicted well is reduced; 0 is cross entropy"
    ],
    weights=Weights,
)
bce = component(
    BinaryCrossEntropy,
    "Binary cross entropy, for several labels per sample that are 0 or 1.",
    pos_weight=Annotated[list[float] | None, "A factor for each class's positive labels; null is 1 for all"],
)
mse = component(partial(Regression, "mse", functional.mse_loss), "The mean of squared errors, for regression.")
l1 = component(partial(Regression, "l1", functional.l1_loss), "The mean of absolute errors, for regression.")
huber = component(
    _huber,
    "Huber loss: squared for small errors, absolute for large ones.",
    delta=Annotated[float, Field(gt=0), "The error up to which the loss is squared"],
)
