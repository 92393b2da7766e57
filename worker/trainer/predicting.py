"""What an evaluation does with each batch. It is chosen once; the hulls that nobody overrides are left out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from worker.trainer.losses import predictions
from worker.trainer.step import is_overridden

if TYPE_CHECKING:
    from worker.trainer.evaluating import Evaluating

Seen = tuple[Tensor | None, Any, Any]
"""(loss, logits, labels) of a batch; each may be None."""

_HOOKS = (
    "prediction_step", "compute_loss", "compute_loss_context_manager", "autocast_smart_context_manager",
    "_prepare_inputs", "_prepare_input",
)  # fmt: skip


def prediction_step(
    trainer: Evaluating, model: Any, *, loss_only: bool, ignore_keys: list[str] | None
) -> Callable[[Any], Seen]:
    """The trainer's own `prediction_step` where anything of it is overridden; else the same without its hulls."""
    from worker.trainer.trainer import Trainer as Plain

    if any(is_overridden(trainer, name, Plain) for name in _HOOKS):
        return lambda batch: trainer.prediction_step(model, batch, loss_only, ignore_keys)
    to_device, loss_of, device = trainer.strategy.to_device, trainer.loss_of, trainer.strategy.device
    count_items, names = trainer._get_num_items_in_batch, trainer.label_names
    keys = keys_to_ignore(trainer.model) if ignore_keys is None else ignore_keys
    without_gradients = torch.no_grad()

    def step(batch: Any) -> Seen:
        inputs = to_device(batch)
        labels, has_loss = labels_and_loss(inputs, names, returns_loss=trainer.can_return_loss)
        with without_gradients:
            if has_loss:
                loss, outputs, _ = loss_of(model, inputs, count_items([inputs], device))
                loss = loss.mean() if loss.dim() else loss
            else:
                loss, outputs = None, model(**inputs)
        return (loss, None, None) if loss_only else (loss, predictions(outputs, keys, has_loss), labels)

    return step


def labels_and_loss(inputs: Mapping[str, Any], names: list[str], *, returns_loss: bool) -> tuple[Any, bool]:
    """A batch's labels, None unless all of them are there; and whether there is a loss."""
    labels = [value for name in names if (value := inputs.get(name)) is not None]
    if len(labels) == len(names) > 0:
        return labels[0] if len(labels) == 1 else tuple(labels), True
    return None, not names and bool(inputs.get("return_loss", returns_loss))


def keys_to_ignore(model: Any) -> list[str]:
    """What of the outputs is no prediction, as the model's config says it."""
    config = getattr(model, "config", None)
    return [] if config is None else getattr(config, "keys_to_ignore_at_inference", ["past_key_values"])


def weight_of(trainer: Evaluating) -> Callable[[Any, int], int]:
    """As how many samples a batch counts in the mean of losses: as it has, where nobody says otherwise."""
    from worker.trainer.trainer import Trainer as Plain

    if is_overridden(trainer, "_loss_weight", Plain):
        return lambda batch, samples: trainer._loss_weight(batch)
    return lambda batch, samples: samples
