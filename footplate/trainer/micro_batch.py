"""Reads the micro-batches of a step, and computes the loss and the gradients of each."""

from __future__ import annotations

import logging
import math
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from footplate.trainer import batch_errors
from footplate.trainer.data import count_items
from footplate.trainer.losses.loss import NoLabels, loss_and_how, own_loss
from footplate.trainer.named import backward_of
from footplate.trainer.overrides import Shortcut, left_out_by
from footplate.trainer.seeds import host_rng, set_host_rng

if TYPE_CHECKING:
    from footplate.trainer.trainer import Trainer

log = logging.getLogger("footplate.trainer")


@left_out_by(Shortcut.COUNT_IN_ALL_PROCESSES)
def get_batch_samples(
    trainer: Trainer, epoch_iterator: Iterator[Any], num_batches: int, device: torch.device
) -> tuple[list[Any], Tensor | int | None]:
    """Returns one step's micro-batches, and if the loss needs it, the number of labels that are not ignored."""
    window = [batch for _, batch in zip(range(num_batches), epoch_iterator, strict=False)]
    return window, trainer._get_num_items_in_batch(window, device)


@left_out_by(Shortcut.COUNT_IN_ALL_PROCESSES)
def num_items_in_batch(trainer: Trainer, batch_samples: list[Any], device: torch.device) -> Tensor | int | None:
    signature = trainer._footplate.model_signature
    counts = trainer.model_accepts_loss_kwargs or trainer.compute_loss_func is not None or not signature.takes_labels
    return count_items(batch_samples, device, shifts=trainer._loss_shifts_labels) if counts else None


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


# Detecting once, before the first step, whether a model that takes `num_items_in_batch` divides its loss by it. Many
# models of transformers take the number and ignore it: masked language models, sequence and token classification, and
# T5. Their loss is a mean over one micro-batch. The sum of such means grows with the number of micro-batches.

_FACTOR = 2**16
"""The model's loss is computed for a number of items and for this multiple. If the model divides by the number, the
second loss is this many times smaller, which no rounding error explains."""
_SAME = 1e-4
"""The relative difference below which two losses count as equal."""


def divides_by_items(trainer: Trainer, inputs: Mapping[str, Any], items: Tensor | int) -> bool | None:
    """Compares the model's losses of one batch for two numbers of items.

    Returns None if the batch's loss is zero or NaN on every process. The two forwards leave generators, buffers and
    gradients unchanged. Compiled models run without compilation.
    """
    model = trainer._footplate.strategy.prepare_for_evaluation(trainer.model)
    loss, other_loss = (
        _loss(model, inputs, number, trainer._footplate.strategy.device) for number in (items, items * _FACTOR)
    )
    own_answer: bool | None
    if loss is None or other_loss is None:
        own_answer = True  # the Trainer computes the loss from the logits, and divides it itself
    elif loss == 0 or not math.isfinite(loss):
        own_answer = None
    else:
        own_answer = abs(loss - other_loss) > _SAME * abs(loss)
    answers = [answer for answer in trainer._footplate.strategy.peers.all_gather(own_answer) if answer is not None]
    divides = any(answers) if answers else None
    if divides is False:
        log.warning(
            "%s takes num_items_in_batch but does not divide its loss by it: each micro-batch's loss is weighted by "
            "its share of the step's labels. With Trainer.loss_is_scaled_for_ga = True, losses are added up without "
            "weights, as in transformers",
            type(trainer.model).__name__,
        )
    return divides


def share_of_window(loss: Tensor, batch: Mapping[str, Any], items: Tensor | int, *, shifts: bool) -> Tensor | None:
    """Returns a micro-batch's mean loss times its share of the window's labels, or None if there are no labels.

    A micro-batch in which all labels are ignored has a mean of 0 / 0, so its share is 0.
    """
    item_count = count_items([batch], loss.device, shifts=shifts)
    return None if item_count is None else torch.where(item_count > 0, loss * (item_count / items), 0.0)


def _loss(model: nn.Module, inputs: Mapping[str, Any], items: Tensor | int, device: torch.device) -> float | None:
    # If dynamo is not imported, nothing is compiled anyway.
    is_compiled = "torch._dynamo" in sys.modules
    eagerly: Any = torch.compiler.set_stance("force_eager") if is_compiled else nullcontext()
    with torch.no_grad(), _undisturbed(model, device), eagerly:
        loss = own_loss(model(**{**inputs, "num_items_in_batch": items}))
    return None if loss is None or loss.dim() else float(loss)


@contextmanager
def _undisturbed(model: nn.Module, device: torch.device) -> Iterator[None]:
    """Restores generators and buffers, because dropout draws and batch norm counts even without gradients."""
    host = host_rng()
    buffers = [
        (module._buffers, name, buffer, buffer.clone())
        for module in model.modules()
        for name, buffer in module._buffers.items()
        if buffer is not None
    ]
    devices = [] if device.type == "cpu" else [device]
    try:
        with torch.random.fork_rng(devices, device_type="cuda" if device.type == "cpu" else device.type):
            yield
    finally:
        set_host_rng(host)
        for places, name, buffer, values in buffers:
            places[name] = buffer.copy_(values)
