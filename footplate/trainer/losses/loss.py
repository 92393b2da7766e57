"""One contract for losses: a sum and what it is a sum over.

A mean cannot be averaged: micro-batches and ranks differ in size. A loss that says (sum, count) is exact however the
batch is cut. A model that returns a mean of its own is taken at its word, as the reference does.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional

from footplate.trainer.losses.labels import IGNORE, BadLabel


@dataclass(frozen=True, slots=True)
class Loss:
    total: Tensor
    count: Tensor | float

    def over(self, num_items: Tensor | int | None) -> Tensor:
        """The mean, or the share of a window in which `num_items` count."""
        return self.total / (self.count if num_items is None else num_items)


class LossOfFamily(Protocol):
    """The loss that a model's class name stands for. families.py has them."""

    @property
    def sums(self) -> bool: ...
    def has_labels(self, inputs: Mapping[str, Any]) -> bool: ...
    def loss(self, outputs: Any, inputs: Mapping[str, Any]) -> Loss: ...


def items(labels: Tensor, ignore: int = IGNORE) -> Tensor:
    """How many labels count."""
    return labels.ne(ignore).sum()


def regression(logits: Tensor, labels: Tensor) -> Loss:
    """Squared errors. A last dimension of one is dropped: (8, 1) against (8,) would silently compare all with all."""
    if logits.shape != labels.shape:
        logits = logits.squeeze(-1)
    return Loss(functional.mse_loss(logits, labels.to(logits.dtype), reduction="sum"), labels.numel())


def classification(logits: Tensor, labels: Tensor, ignore: int = IGNORE) -> Loss:
    """Cross entropy over the last dimension of the logits: of samples, or of tokens."""
    classes = logits.shape[-1]
    return cross_entropy_sum(logits.reshape(-1, classes).float(), labels.reshape(-1), ignore)


def cross_entropy_sum(source: Tensor, target: Tensor, ignore: int = IGNORE) -> Loss:
    """Over dimension 1 of the source. A class that does not exist is told by its number, not by torch's bounds."""
    try:
        total = functional.cross_entropy(source, target, ignore_index=ignore, reduction="sum")
    except (IndexError, RuntimeError):
        BadLabel.refuse("labels", target, source.shape[1], ignore)
        raise
    return Loss(total, items(target, ignore))


def from_logits(logits: Tensor, labels: Tensor) -> Loss:
    """The loss that fits the labels: numbers are regressed, classes are classified."""
    if labels.is_floating_point() or logits.shape == labels.shape or logits.shape == (*labels.shape, 1):
        return regression(logits, labels)
    if logits.shape[:-1] != labels.shape:
        raise ValueError(
            f"no loss fits logits of shape {tuple(logits.shape)} and labels of shape {tuple(labels.shape)}: return a "
            "loss from forward, or hand in compute_loss_func"
        )
    return classification(logits, labels)


def shifts_labels(model: nn.Module) -> bool:
    """Whether the model's logits at one place are about the label at the next, as its class name says."""
    return type(model).__name__.endswith(("ForCausalLM", "LMHeadModel"))


def shifted(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Logits and the labels that they are about, where these are one place ahead."""
    return logits[..., :-1, :], labels[..., 1:]


DICT = (dict, Mapping)
"""To be asked once or more for each batch: of a dict, Mapping alone answers in Python and ten times as slowly."""


def own_loss(outputs: Any) -> Tensor | None:
    """The loss that the model computed itself, if it did: under the key `loss`, or first in a tuple.

    In a tuple it is one number: what has a shape there may as well be logits, and nobody wants their sum to be small.
    """
    loss: Tensor | None = None
    if isinstance(outputs, DICT):
        loss = outputs.get("loss")
    elif isinstance(outputs, tuple) and not hasattr(outputs, "loss"):
        first = next(iter(outputs), None)
        loss = first if isinstance(first, Tensor) and first.shape in ((), (1,)) else None
    elif not isinstance(outputs, Tensor):
        loss = getattr(outputs, "loss", None)
    return loss


def predictions(outputs: Any, ignore_keys: Collection[str], has_loss: bool) -> Any:
    """What is left of the outputs without the loss; a single one comes by itself."""
    if isinstance(outputs, Tensor):
        return outputs
    if isinstance(outputs, DICT):
        rest = tuple([value for key, value in outputs.items() if key != "loss" and key not in ignore_keys])
    elif isinstance(outputs, tuple):
        rest = outputs[1:] if has_loss else outputs
    else:
        rest = (outputs.logits,)
    return rest[0] if len(rest) == 1 else rest


def loss_and_how(
    outputs: Any,
    labels: Tensor | None,
    num_items: Tensor | int | None,
    *,
    shifts: bool = False,
    family: LossOfFamily | None = None,
    inputs: Mapping[str, Any] | None = None,
) -> tuple[Tensor, bool]:
    """The loss, and whether it is already scaled for the whole window of micro-batches.

    `family` is what the model's class name says its logits are about; without one the labels' kind and shape say it.
    """
    loss = own_loss(outputs)
    if loss is not None and not isinstance(loss, Tensor):
        raise TypeError(
            f"the model's loss is a {type(loss).__name__}, and a tensor is needed: its gradients are what is learned "
            "from, so leave out .item()"
        )
    if loss is not None and loss.dim() == 0:
        return loss, False
    if loss is not None:
        return _shared(Loss(loss.sum(), _elements(loss, labels)), num_items)
    if family is not None and inputs is not None and family.has_labels(inputs):
        found = family.loss(outputs, inputs)
        return _shared(found, num_items) if family.sums else (found.total, False)
    if labels is None:
        raise ValueError(
            "the model returned no loss, and the batch has no labels to make one from: "
            "they are called labels, label or label_ids"
        )
    logits = logits_of(outputs)
    if shifts:
        logits, labels = shifted(logits, labels)
    return _shared(from_logits(logits, labels), num_items)


def _shared(loss: Loss, num_items: Tensor | int | None) -> tuple[Tensor, bool]:
    return loss.over(num_items), num_items is not None


def _elements(loss: Tensor, labels: Tensor | None) -> Tensor | int:
    same = labels is not None and labels.shape == loss.shape and not labels.is_floating_point()
    return items(labels) if same and labels is not None else loss.numel()


def logits_of(outputs: Any) -> Tensor:
    if isinstance(outputs, Tensor):
        return outputs
    logits = outputs.get("logits") if isinstance(outputs, Mapping) else getattr(outputs, "logits", None)
    if logits is None and isinstance(outputs, tuple):
        raise ValueError(
            "the model returned a tuple that does not begin with a loss: return a loss of one number first, or a dict "
            "with logits, or the logits alone"
        )
    if logits is None:
        keys = ", ".join(outputs) if isinstance(outputs, Mapping) else type(outputs).__name__
        raise ValueError(f"the model returned neither loss nor logits, only: {keys}")
    return torch.as_tensor(logits)


def forward_takes(model: nn.Module) -> tuple[list[str], bool]:
    """The names that `forward` takes, and whether it takes any others too."""
    import inspect

    parameters = inspect.signature(model.forward).parameters.values()
    open_ended = any(each.kind is each.VAR_KEYWORD for each in parameters)
    return [each.name for each in parameters if each.kind not in (each.VAR_KEYWORD, each.VAR_POSITIONAL)], open_ended
