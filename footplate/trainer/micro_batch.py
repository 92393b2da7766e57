"""Computes the loss and the gradients of one micro-batch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from footplate.trainer import batch_errors
from footplate.trainer.loss_scaling import divides_by_items, share_of_window
from footplate.trainer.losses.loss import NoLabels, loss_and_how, own_loss
from footplate.trainer.named import backward_of
from footplate.trainer.overrides import Shortcut, left_out_by

if TYPE_CHECKING:
    from footplate.trainer.trainer import Trainer


@left_out_by(Shortcut.TRAINING_STEP)
def training_step(
    trainer: Trainer, model: nn.Module, inputs: dict[str, Any], num_items_in_batch: Tensor | int | None = None
) -> Tensor:
    """Runs forward and backward of one micro-batch, and returns its share of the step's loss, detached."""
    internals = trainer._footplate
    if not trainer.model.training:
        model.train()
    inputs = trainer._prepare_inputs(inputs)
    internals.loss_is_scaled = None
    with trainer.compute_loss_context_manager():
        loss: Tensor = trainer.compute_loss(model, inputs, num_items_in_batch=num_items_in_batch)
    loss = share_of_step(trainer, loss, num_items_in_batch, is_scaled=_is_scaled(trainer, num_items_in_batch))
    backward_of(internals.strategy, trainer.optimizer)(loss)
    return loss.detach()


@left_out_by(Shortcut.TRAINING_STEP, Shortcut.PREDICTION_STEP, Shortcut.KNOWN_METRICS)
def compute_loss(
    trainer: Trainer,
    model: nn.Module,
    inputs: dict[str, Any],
    return_outputs: bool = False,
    num_items_in_batch: Tensor | int | None = None,
) -> Any:
    """Returns the model's own loss, that of `compute_loss_func`, or the loss that fits logits and labels.

    Stores whether the loss is already a share of the accumulation window's loss.
    """
    internals = trainer._footplate
    loss, outputs, internals.loss_is_scaled = loss_of(trainer, model, inputs, num_items_in_batch)
    is_divided = internals.loss_is_scaled and num_items_in_batch is not None
    if internals.strategy.loss_factor != 1 and is_divided and torch.is_grad_enabled():
        loss = loss * internals.strategy.loss_factor
    return (loss, outputs) if return_outputs else loss


def _is_scaled(trainer: Trainer, num_items: Tensor | int | None) -> bool:
    """Returns True if the last loss is a share of the accumulation window's loss, and not a mean of its micro-batch."""
    if trainer.loss_is_scaled_for_ga is not None:
        return trainer.loss_is_scaled_for_ga
    loss_is_scaled = trainer._footplate.loss_is_scaled
    if loss_is_scaled is not None:
        return loss_is_scaled
    return trainer.compute_loss_func is not None or (trainer.model_accepts_loss_kwargs and num_items is not None)


def share_of_step(trainer: Trainer, loss: Tensor, items: Tensor | int | None, *, is_scaled: bool) -> Tensor:
    """Returns a micro-batch's share of the step's loss. `is_scaled` is False if the loss is a mean of its micro-batch.

    Without a count of items, a scaled loss is taken for a mean too, as Hugging Face does for a `compute_loss_func`. It
    is not divided by the number of micro-batches, but processes may have batches of different sizes.
    """
    if not is_scaled:
        return loss / trainer.current_gradient_accumulation_steps
    weight = trainer._footplate.batch_weight
    return loss * weight if weight == 0 or (items is None and weight != 1) else loss


def loss_of(
    trainer: Trainer,
    model: nn.Module,
    inputs: dict[str, Any],
    num_items: Tensor | int | None,
    *,
    reads_only_loss: bool = False,
) -> tuple[Tensor, Any, bool]:
    """Returns the loss, the outputs, and whether the loss is already a share of the accumulation window's loss.

    With `reads_only_loss`, the outputs may be in half precision.
    """
    internals, smoother, compute = trainer._footplate, trainer.label_smoother, trainer.compute_loss_func
    batch, labels, signature = inputs, inputs.get("labels"), internals.model_signature
    computes = compute is not None or (smoother is not None and labels is not None)
    if computes or not signature.takes_labels:
        inputs = {name: value for name, value in inputs.items() if name != "labels"}
    scales_itself = False
    if trainer.model_accepts_loss_kwargs and num_items is not None:
        scales_itself = True
        if not computes and _must_detect_scaling(trainer):
            internals.model_divides_by_items = divides_by_items(trainer, inputs, num_items)
        inputs = {**inputs, "num_items_in_batch": num_items}
    fp32_outputs = internals.strategy.fp32_outputs
    # A forward hook reads the outputs too, so it needs them in float32.
    stays_half = reads_only_loss and fp32_outputs.is_on and not computes and not trainer.model._forward_hooks
    fp32_outputs.are_read = not stays_half
    try:
        outputs = model(**inputs)
    except TypeError as error:
        if (explained := batch_errors.does_not_fit(trainer, model, inputs, error)) is error:
            raise
        raise explained from error
    finally:
        fp32_outputs.are_read = True
    if stays_half and own_loss(outputs) is None:
        outputs = fp32_outputs.convert(outputs)
    if compute is not None:
        return compute(outputs, labels, num_items_in_batch=num_items), outputs, True
    if smoother is not None and labels is not None:
        loss = smoother(outputs, labels, shift_labels=signature.shifts_labels, num_items_in_batch=num_items)
        return loss, outputs, num_items is not None
    try:
        loss, scaled = loss_and_how(
            outputs, labels, num_items, shifts=signature.shifts_labels, family=signature.family, inputs=batch
        )
    except NoLabels as error:
        raise ValueError(
            f"{error}. The rows have {batch_errors.columns(trainer)}. If one of these columns has the labels, rename "
            'it: {"use": "rename", "args": {"columns": {"THAT COLUMN": "labels"}}} in data.map'
        ) from error
    if stays_half:
        loss = fp32_outputs.convert(loss)
    if num_items is not None and not scaled and internals.model_divides_by_items is False and torch.is_grad_enabled():
        share = share_of_window(loss, batch, num_items, shifts=trainer._loss_shifts_labels)
        return (loss, outputs, False) if share is None else (share, outputs, True)
    return loss, outputs, scaled or scales_itself


def _must_detect_scaling(trainer: Trainer) -> bool:
    """Returns True if training must detect whether the model divides its loss by `num_items_in_batch`.

    If the accumulation window is one micro-batch of one process, the loss is the same either way.
    """
    internals = trainer._footplate
    return (
        internals.model_divides_by_items is None
        and trainer.loss_is_scaled_for_ga is None
        and (trainer.current_gradient_accumulation_steps != 1 or internals.strategy.readers.world > 1)
        and trainer.is_in_train
        and torch.is_grad_enabled()
    )
