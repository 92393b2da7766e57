"""The optimizer step in a run of several processes."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._utils import _flatten_dense_tensors, _unflatten_dense_tensors

from footplate.trainer.data import batch_length
from footplate.trainer.named import NamedOptimizers
from footplate.trainer.overrides import Shortcut
from footplate.trainer.steps.step import Step
from footplate.trainer.strategies.peers import PaddingBatch

if TYPE_CHECKING:
    from footplate.trainer.trainer import Trainer


class SharedStep(Step):
    """Counts items over all processes, and exchanges gradients in the last backward of an accumulation window."""

    def __init__(self, trainer: Trainer) -> None:
        super().__init__(trainer)
        self.strategy = trainer._footplate.strategy
        self.readers = self.strategy.readers
        # A user's own get_batch_samples already counts over all processes, as with Hugging Face.
        self.counts = trainer.args.average_tokens_across_devices and trainer._footplate.overrides.allow(
            Shortcut.COUNT_IN_ALL_PROCESSES
        )
        self.weighs = self.strategy.is_uneven(trainer.callback_handler.train_dataloader)
        # Several losses have separate parameters, so no single backward has all gradients to exchange.
        self.by_hand = isinstance(self.optimizer, NamedOptimizers)
        self.holds = not (self.strategy.accelerator_config.gradient_accumulation_kwargs or {}).get("sync_each_batch")

    def run(self, window: list[Any], items: Tensor | int | None) -> None:
        super().run(window, self.readers.total(items) if self.counts and items is not None else items)

    def accumulate(self, window: list[Any], items: Tensor | int | None) -> None:
        trainer, size = self.trainer, len(window)
        tokens = trainer.state.num_input_tokens_seen
        for number, batch in enumerate(window, start=1):
            self.gradient_state.sync_gradients = number == size
            self.strategy.skip_gradient_sync(self.model, self.by_hand or (self.holds and number < size))
            weight = trainer._footplate.batch_weight = self._weight(batch)
            if weight == 1:
                trainer.current_gradient_accumulation_steps = size
            else:
                trainer.current_gradient_accumulation_steps = size / weight if weight else math.inf
            is_padding = isinstance(batch, PaddingBatch)
            self.tally.add(self.micro_step(batch, _infinite(items) if is_padding else items))
            if not is_padding:
                self.count(batch)
            if number < size:
                trainer.control = trainer.callback_handler.on_substep_end(trainer.args, trainer.state, trainer.control)
        if trainer.args.include_num_input_tokens_seen != "no":
            own_tokens = trainer.state.num_input_tokens_seen - tokens
            trainer.state.num_input_tokens_seen = tokens + self.readers.total(own_tokens)
        if self.by_hand:
            average_gradients(self.zeroed, self.readers.world)

    def _weight(self, batch: Any) -> float:
        """Returns the weight of a batch's mean loss: its share of the samples of all processes, times their number.

        It is 1 if all have equally many, and 0 for a padding batch, so that loss and gradients are zero.
        """
        if not self.weighs:
            return 1.0
        samples = 0 if isinstance(batch, PaddingBatch) else batch_length(batch)
        all_samples: int = self.readers.total(samples)
        return samples * self.readers.world / all_samples if samples else 0.0


def _infinite(items: Tensor | int | None) -> Any:
    if items is None:
        return None
    return torch.full_like(items, math.inf, dtype=torch.float) if isinstance(items, Tensor) else math.inf


def average_gradients(parameters: list[nn.Parameter], world: int) -> None:
    """Averages gradients over all processes, in one message per device and dtype."""
    kinds: dict[tuple[torch.device, torch.dtype], list[Tensor]] = {}
    for parameter in parameters:
        if parameter.grad is not None:
            kinds.setdefault((parameter.grad.device, parameter.grad.dtype), []).append(parameter.grad)
    for gradients in kinds.values():
        flat = _flatten_dense_tensors(gradients)  # type: ignore[no-untyped-call]
        dist.all_reduce(flat)
        flat /= world
        means = _unflatten_dense_tensors(flat, gradients)  # type: ignore[no-untyped-call]
        for gradient, mean in zip(gradients, means, strict=True):
            gradient.copy_(mean)
