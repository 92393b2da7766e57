"""Whether a model that takes `num_items_in_batch` divides its loss by it, found out once before the first step.

Many of transformers' models take the number and ignore it: masked language models, sequence and token classification,
T5. Their loss is a mean over one micro-batch, and a sum of such means grows with the number of micro-batches.
"""

from __future__ import annotations

import logging
import math
import sys
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from footplate.trainer.data import count_items
from footplate.trainer.facade import Facade
from footplate.trainer.losses import own_loss
from footplate.trainer.seeds import host_rng, set_host_rng

log = logging.getLogger("footplate.trainer")

_FACTOR = 2**16
"""A loss that is divided by so many more items nearly vanishes: a rounding error on a GPU is told from a division."""
_SAME = 1e-4
"""The relative difference below which two losses are one."""


def divides_by_items(trainer: Facade, inputs: Mapping[str, Any], items: Tensor | int) -> bool | None:
    """Compares the model's losses of one batch at two numbers of items. None if the batch shows nothing: its loss is
    zero or NaN on every process.

    The two forwards leave generators, buffers and gradients as they were. Compiled models run as they were written.
    """
    model = trainer._footplate.strategy.prepare_for_evaluation(trainer.model)
    few, many = (
        _loss(model, inputs, number, trainer._footplate.strategy.device) for number in (items, items * _FACTOR)
    )
    own: bool | None
    if few is None or many is None:
        own = True  # the Trainer makes the loss of the logits, and divides it by itself
    elif few == 0 or not math.isfinite(few):
        own = None
    else:
        own = abs(few - many) > _SAME * abs(few)
    answers = [answer for answer in trainer._footplate.strategy.peers.everyone(own) if answer is not None]
    found = any(answers) if answers else None
    if found is False:
        log.warning(
            "%s takes num_items_in_batch and does not divide its loss by it: each micro-batch's loss counts by its "
            "share of the step's labels. Trainer.loss_is_scaled_for_ga = True adds them up, as transformers does",
            type(trainer.model).__name__,
        )
    return found


def share_of_window(loss: Tensor, batch: Mapping[str, Any], items: Tensor | int, *, shifts: bool) -> Tensor | None:
    """The mean over a micro-batch as its share of the mean over the window. None if the batch has no labels to count.

    A micro-batch without labels has no part in it. Its mean is 0 / 0.
    """
    own = count_items([batch], loss.device, shifts=shifts)
    return None if own is None else torch.where(own > 0, loss * (own / items), 0.0)


def _loss(model: nn.Module, inputs: Mapping[str, Any], items: Tensor | int, device: torch.device) -> float | None:
    with torch.no_grad(), _undisturbed(model, device), _not_compiled():
        loss = own_loss(model(**{**inputs, "num_items_in_batch": items}))
    return None if loss is None or loss.dim() else float(loss)


@contextmanager
def _undisturbed(model: nn.Module, device: torch.device) -> Iterator[None]:
    """Puts generators and buffers back: dropout draws, and batch normalization counts, in a forward without gradients
    too."""
    host = host_rng()
    buffers = [
        (module._buffers, name, buffer, buffer.clone())
        for module in model.modules()
        for name, buffer in module._buffers.items()
        if buffer is not None
    ]
    others = [] if device.type == "cpu" else [device]
    try:
        with torch.random.fork_rng(others, device_type="cuda" if device.type == "cpu" else device.type):
            yield
    finally:
        set_host_rng(host)
        for places, name, buffer, values in buffers:
            places[name] = buffer.copy_(values)


def _not_compiled() -> AbstractContextManager[Any]:
    """Nothing is compiled for these forwards. Where dynamo is not imported, nothing is compiled at all."""
    return torch.compiler.set_stance("force_eager") if "torch._dynamo" in sys.modules else nullcontext()
