"""The forward of one batch in an evaluation, with a faster version if the methods that it skips are not overridden."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from footplate.trainer import batch_errors
from footplate.trainer.losses.loss import predictions
from footplate.trainer.micro_batch import loss_of
from footplate.trainer.overrides import Shortcut

if TYPE_CHECKING:
    from footplate.trainer.trainer import Trainer

BatchResult = tuple[Tensor | None, Any, Any]
"""Loss, logits and labels of a batch. Each may be None."""


def prediction_step(
    trainer: Trainer, model: Any, *, loss_only: bool, ignore_keys: list[str] | None
) -> Callable[[Any], BatchResult]:
    """Returns the Trainer's `prediction_step` if it or a method that it calls is overridden, else a faster one."""
    if not trainer._footplate.overrides.allow(Shortcut.PREDICTION_STEP):
        return lambda batch: trainer.prediction_step(model, batch, loss_only, ignore_keys)
    to_device, device = trainer._footplate.strategy.to_device, trainer._footplate.strategy.device
    count_items = trainer._get_num_items_in_batch
    keys = keys_to_ignore(trainer.model) if ignore_keys is None else ignore_keys
    without_gradients = torch.no_grad()

    def step(batch: Any) -> BatchResult:
        try:
            inputs = to_device(batch)
            labels, has_loss = labels_and_loss(trainer, inputs)
            with without_gradients:
                if has_loss:
                    loss, outputs, _ = loss_of(trainer, model, inputs, count_items([inputs], device))
                    loss = loss.mean() if loss.dim() else loss
                else:
                    loss, outputs = None, model(**inputs)
            return (loss, None, None) if loss_only else (loss, predictions(outputs, keys, has_loss), labels)
        except (RuntimeError, IndexError, ValueError) as error:
            if (reason := batch_errors.explained(trainer, [batch], error)) is not None:
                raise reason from error
            raise

    return step


def labels_and_loss(trainer: Trainer, inputs: Mapping[str, Any]) -> tuple[Any, bool]:
    """Returns a batch's labels, or None if one of them is missing, and True if a loss is computed for the batch.

    For a model without label names, `return_loss` decides if a loss is computed. The batch or else the model sets
    `return_loss`. Without a loss, Hugging Face calls forward with the whole batch, which fails if forward lacks an
    argument for a key. Here, an overridden `compute_loss` is called instead, as in training.
    """
    names = trainer.label_names
    labels = [value for name in names if (value := inputs.get(name)) is not None]
    if names:
        is_whole = len(labels) == len(names)
        return (labels[0] if len(labels) == 1 else tuple(labels)) if is_whole else None, is_whole
    return_loss = inputs.get("return_loss")
    if trainer.can_return_loss if return_loss is None else return_loss:
        return (), True
    if trainer.args.label_names is None and inputs.get("labels") is not None:
        return inputs["labels"], True
    signature = trainer._footplate.model_signature
    forward_takes_all = signature.is_open or inputs.keys() <= set(signature.arguments)
    return None, not forward_takes_all and "compute_loss" in trainer._footplate.overrides


def keys_to_ignore(model: Any) -> list[str]:
    """Returns the outputs that are not predictions, as the model's config lists them."""
    config = getattr(model, "config", None)
    return [] if config is None else getattr(config, "keys_to_ignore_at_inference", ["past_key_values"])
