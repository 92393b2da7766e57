"""A loss is a sum over labels and the number of these labels.

Means over micro-batches and ranks of different size cannot be averaged. A sum with its count is exact however the batch
is split. If a model returns its own mean, that mean is used, as Hugging Face does.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from footplate.trainer.losses.labels import IGNORE, bad_label

if TYPE_CHECKING:
    from footplate.trainer.losses.families import Family


class NoLabels(ValueError):
    """Raised if the model returns no loss and the batch has no labels to compute a loss from."""


@dataclass(frozen=True, slots=True)
class Loss:
    total: Tensor
    count: Tensor | float

    def over(self, num_items: Tensor | int | None) -> Tensor:
        """Returns the mean over this batch's items, or the sum divided by `num_items`.

        With the number of items in a whole accumulation window, the results of its batches add up to the window's mean.
        """
        return self.total / (self.count if num_items is None else num_items)


def items(labels: Tensor, ignore: int = IGNORE) -> Tensor:
    """Returns the number of labels that differ from `ignore`."""
    return labels.ne(ignore).sum()


def regression(logits: Tensor, labels: Tensor) -> Loss:
    """Returns the sum of squared errors and the number of labels.

    A last dimension of 1 is dropped, because shapes (8, 1) and (8,) would broadcast to (8, 8).
    """
    if logits.shape != labels.shape:
        logits = logits.squeeze(-1)
    return Loss(functional.mse_loss(logits, labels.to(logits.dtype), reduction="sum"), labels.numel())


def in_shape_of(labels: Tensor, logits: Tensor, name: str) -> Tensor:
    """Returns the logits in the shape of the labels, without a last dimension of 1.

    Raises ValueError, which names the loss or metric, if the shapes still differ.
    """
    if logits.shape == (*labels.shape, 1):
        logits = logits.squeeze(-1)
    if logits.shape != labels.shape:
        raise ValueError(
            f"{name} needs logits and labels of the same shape: logits have the shape {tuple(logits.shape)}, labels "
            f"{tuple(labels.shape)}"
        )
    return logits


def classification(logits: Tensor, labels: Tensor, ignore: int = IGNORE) -> Loss:
    """Returns the cross entropy of samples or tokens. The last dimension of the logits holds the classes."""
    classes = logits.shape[-1]
    return cross_entropy_sum(logits.reshape(-1, classes).float(), labels.reshape(-1), ignore)


def cross_entropy_sum(source: Tensor, target: Tensor, ignore: int = IGNORE) -> Loss:
    """Returns the cross entropy. Dimension 1 of the logits `source` holds the classes.

    The error for a target that is not a class names the target.
    """
    try:
        total = functional.cross_entropy(source, target, ignore_index=ignore, reduction="sum")
    except (IndexError, RuntimeError) as error:
        if explained := bad_label("labels", target, source.shape[1], ignore):
            raise explained from error
        raise
    return Loss(total, items(target, ignore))


def from_logits(logits: Tensor, labels: Tensor) -> Loss:
    """Computes the loss that fits the labels: regression for numbers, cross entropy for classes."""
    if labels.is_floating_point() or logits.shape == labels.shape or logits.shape == (*labels.shape, 1):
        return regression(logits, labels)
    if logits.shape[:-1] != labels.shape:
        raise ValueError(
            f"no loss fits logits of shape {tuple(logits.shape)} and labels of shape {tuple(labels.shape)}: return a "
            "loss from forward, or pass compute_loss_func"
        )
    return classification(logits, labels)


def shifts_labels(model: nn.Module) -> bool:
    """Returns True if the model predicts the next token, according to its class name."""
    return type(model).__name__.endswith(("ForCausalLM", "LMHeadModel"))


def shifted(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Returns logits without the last position and labels without the first, so that logits predict the next token."""
    return logits[..., :-1, :], labels[..., 1:]


DICT = (dict, Mapping)
"""The types of a dict, for checks in every batch. For a dict, `isinstance` with Mapping alone is ten times slower."""


def own_loss(outputs: Any) -> Tensor | None:
    """Returns the loss in a model's outputs: the key `loss`, or the first item of a tuple, or None.

    In a tuple only a single number is a loss, because a tensor with a shape may be logits.
    """
    loss: Tensor | None = None
    if isinstance(outputs, DICT):
        loss = outputs.get("loss")
    elif isinstance(outputs, tuple) and not hasattr(outputs, "loss"):
        first_output = next(iter(outputs), None)
        loss = first_output if isinstance(first_output, Tensor) and first_output.shape in ((), (1,)) else None
    elif not isinstance(outputs, Tensor):
        loss = getattr(outputs, "loss", None)
    return loss


def predictions(outputs: Any, ignore_keys: Collection[str], has_loss: bool) -> Any:
    """Returns the outputs without the loss; if only one output is left, returns it alone."""
    if isinstance(outputs, Tensor):
        return outputs
    if isinstance(outputs, DICT):
        values = tuple([value for key, value in outputs.items() if key != "loss" and key not in ignore_keys])
    elif isinstance(outputs, tuple):
        values = outputs[1:] if has_loss else outputs
    else:
        values = (outputs.logits,)
    return values[0] if len(values) == 1 else values


def loss_and_how(
    outputs: Any,
    labels: Tensor | None,
    num_items: Tensor | int | None,
    *,
    shifts: bool = False,
    family: Family | None = None,
    inputs: Mapping[str, Any] | None = None,
) -> tuple[Tensor, bool]:
    """Returns the loss, and whether it is already scaled for the whole accumulation window.

    `family` is the loss that the model's class name implies. Without it, the labels' dtype and shape choose the loss.
    """
    loss = own_loss(outputs)
    if loss is not None and not isinstance(loss, Tensor):
        raise TypeError(
            f"the model's loss is a {type(loss).__name__}, and a tensor is needed for its gradients: leave out .item()"
        )
    if loss is not None and loss.dim() == 0:
        return loss, False
    if loss is not None:
        is_per_label = labels is not None and labels.shape == loss.shape and not labels.is_floating_point()
        elements = items(labels) if is_per_label and labels is not None else loss.numel()
        return _shared(Loss(loss.sum(), elements), num_items)
    if family is not None and inputs is not None and family.has_labels(inputs):
        family_loss = family.loss(outputs, inputs)
        return _shared(family_loss, num_items) if family.sums else (family_loss.total, False)
    if labels is None:
        raise NoLabels(
            "the model returned no loss, and the batch has no labels to compute it from: "
            "name them labels, label or label_ids"
        )
    logits = logits_of(outputs)
    if shifts:
        logits, labels = shifted(logits, labels)
    return _shared(from_logits(logits, labels), num_items)


def _shared(loss: Loss, num_items: Tensor | int | None) -> tuple[Tensor, bool]:
    return loss.over(num_items), num_items is not None


def logits_of(outputs: Any) -> Tensor:
    if isinstance(outputs, Tensor):
        return outputs
    logits = outputs.get("logits") if isinstance(outputs, Mapping) else getattr(outputs, "logits", None)
    if logits is None and isinstance(outputs, tuple):
        raise ValueError(
            "the model returned a tuple that does not begin with a loss: return a scalar loss first, or a dict "
            "with logits, or the logits alone"
        )
    if logits is None:
        keys = ", ".join(outputs) if isinstance(outputs, Mapping) else type(outputs).__name__
        raise ValueError(f"the model returned neither loss nor logits, only: {keys}")
    return torch.as_tensor(logits)
