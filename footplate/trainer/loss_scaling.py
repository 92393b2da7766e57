"""Detects once, before the first step, whether a model that takes `num_items_in_batch` divides its loss by it.

Many models of transformers take the number and ignore it: masked language models, sequence and token classification,
and T5. Their loss is a mean over one micro-batch. The sum of such means grows with the number of micro-batches.
"""

from __future__ import annotations

import logging
import math
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from footplate.trainer.data import count_items
from footplate.trainer.losses.loss import own_loss
from footplate.trainer.seeds import host_rng, set_host_rng

if TYPE_CHECKING:
    from footplate.trainer.trainer import Trainer

log = logging.getLogger("footplate.trainer")

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
    few, many = (
        _loss(model, inputs, number, trainer._footplate.strategy.device) for number in (items, items * _FACTOR)
    )
    own_answer: bool | None
    if few is None or many is None:
        own_answer = True  # the Trainer computes the loss from the logits, and divides it itself
    elif few == 0 or not math.isfinite(few):
        own_answer = None
    else:
        own_answer = abs(few - many) > _SAME * abs(few)
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
