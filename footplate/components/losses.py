"""Losses that a spec may name under `loss`, instead of the model's own.

A loss takes the model's `logits` and the batch's `labels`. It is a sum over labels and their count, so a step does
not depend on how its samples are cut into micro-batches. A label of -100 does not count where labels are classes.
"""

from __future__ import annotations

from typing import Annotated, Any

Weights = Annotated[list[float] | None, "A factor for each class; null is 1 for all"]


def cross_entropy(
    *,
    label_smoothing: Annotated[float, "Share of each label that is spread over all classes"] = 0.0,
    weights: Weights = None,
) -> Any:
    """Cross entropy for classes of samples or tokens: a mean over labels, also with class weights."""
    from footplate.components.loss_kinds import CrossEntropy, OfLogits

    return OfLogits(CrossEntropy(label_smoothing, weights))


def focal(
    *,
    gamma: Annotated[float, "How much less well predicted labels count; 0 is cross entropy"] = 2.0,
    weights: Weights = None,
) -> Any:
    """Focal loss: cross entropy in which badly predicted labels count more (arXiv:1708.02002)."""
    from footplate.components.loss_kinds import Focal, OfLogits

    return OfLogits(Focal(gamma, weights))


def bce(
    *, pos_weight: Annotated[list[float] | None, "A factor for each class's positive labels; null is 1 for all"] = None
) -> Any:
    """Binary cross entropy, for several labels per sample that are 0 or 1."""
    from footplate.components.loss_kinds import BinaryCrossEntropy, OfLogits

    return OfLogits(BinaryCrossEntropy(pos_weight))


def mse() -> Any:
    """The mean of squared errors, for regression."""
    from footplate.components.loss_kinds import OfLogits, squared

    return OfLogits(squared)


def l1() -> Any:
    """The mean of absolute errors, for regression."""
    from footplate.components.loss_kinds import OfLogits, absolute

    return OfLogits(absolute)


def huber(*, delta: Annotated[float, "The error up to which the loss is squared"] = 1.0) -> Any:
    """Huber loss: squared for small errors, absolute for large ones."""
    from footplate.components.loss_kinds import Huber, OfLogits

    return OfLogits(Huber(delta))
