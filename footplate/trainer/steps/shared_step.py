"""One optimizer step that many processes make together."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._utils import _flatten_dense_tensors, _unflatten_dense_tensors

from footplate.trainer.data import batch_length
from footplate.trainer.facade import Facade
from footplate.trainer.named import NamedOptimizers
from footplate.trainer.overrides import Shortcut
from footplate.trainer.steps.step import Step
from footplate.trainer.strategies.peers import Hollow


class SharedStep(Step):
    """Items are counted over all processes, and gradients meet once, in the window's last backward."""

    def __init__(self, trainer: Facade) -> None:
        super().__init__(trainer)
        self.strategy = trainer._footplate.strategy
        self.readers = self.strategy.readers
        # Who counts in a way of their own has counted over all processes, as the reference's users do.
        self.counts = trainer.args.average_tokens_across_devices and trainer._footplate.overrides.allow(
            Shortcut.COUNT_IN_ALL_PROCESSES
        )
        self.weighs = self.strategy.is_uneven(trainer.callback_handler.train_dataloader)
        # Several losses go to several sets of parameters: no backward is the one in which all gradients are there.
        self.by_hand = isinstance(self.optimizer, NamedOptimizers)
        self.holds = not (self.strategy.accelerator_config.gradient_accumulation_kwargs or {}).get("sync_each_batch")

    def run(self, window: list[Any], items: Tensor | int | None) -> None:
        super().run(window, self.readers.total(items) if self.counts and items is not None else items)

    def accumulate(self, window: list[Any], items: Tensor | int | None) -> None:
        trainer, last = self.trainer, len(window)
        tokens = trainer.state.num_input_tokens_seen
        for number, batch in enumerate(window, start=1):
            self.gradient_state.sync_gradients = number == last
            self.strategy.hold_back(self.model, self.by_hand or (self.holds and number < last))
            trainer.current_gradient_accumulation_steps = self._divisor(batch, last)
            is_hollow = isinstance(batch, Hollow)
            self.tally.add(self.micro_step(batch, _endless(items) if is_hollow else items))
            if not is_hollow:
                self.count(batch)
            if number < last:
                trainer.control = trainer.callback_handler.on_substep_end(trainer.args, trainer.state, trainer.control)
        if trainer.args.include_num_input_tokens_seen != "no":
            here = trainer.state.num_input_tokens_seen - tokens
            trainer.state.num_input_tokens_seen = tokens + self.readers.total(here)
        if self.by_hand:
            average_gradients(self.zeroed, self.readers.world)

    def _divisor(self, batch: Any, micro_batches: int) -> float:
        """Of a mean over this batch: it counts by its share of the samples in all processes' batches. Over infinity a
        loss is nothing, and so are its gradients."""
        if not self.weighs:
            return micro_batches
        samples = 0 if isinstance(batch, Hollow) else batch_length(batch)
        everyones = self.readers.total(samples)
        return micro_batches * everyones / (samples * self.readers.world) if samples else math.inf


def _endless(items: Tensor | int | None) -> Any:
    if items is None:
        return None
    return torch.full_like(items, math.inf, dtype=torch.float) if isinstance(items, Tensor) else math.inf


def average_gradients(parameters: list[nn.Parameter], world: int) -> None:
    """Of all processes, in one message per kind of number."""
    kinds: dict[tuple[torch.device, torch.dtype], list[Tensor]] = {}
    for each in parameters:
        if each.grad is not None:
            kinds.setdefault((each.grad.device, each.grad.dtype), []).append(each.grad)
    for gradients in kinds.values():
        flat = _flatten_dense_tensors(gradients)  # type: ignore[no-untyped-call]
        dist.all_reduce(flat)
        flat /= world
        means = _unflatten_dense_tensors(flat, gradients)  # type: ignore[no-untyped-call]
        for gradient, mean in zip(gradients, means, strict=True):
            gradient.copy_(mean)
