"""One optimizer step. What it is made of is chosen once, here in the constructor; running it asks no questions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.optim.lr_scheduler import ReduceLROnPlateau

if TYPE_CHECKING:
    from worker.trainer.trainer import Trainer


class Step:
    """Forward and backward of a window of micro-batches, then clip, step, schedule, zero."""

    def __init__(self, trainer: Trainer) -> None:
        strategy, args = trainer.strategy, trainer.args
        self.trainer = trainer
        self.model = trainer.model_wrapped
        self.optimizer = strategy.plain_optimizer(trainer.optimizer)
        self.parameters = [each for group in self.optimizer.param_groups for each in group["params"]]
        self.max_norm = args.max_grad_norm
        self.clip = strategy.clip if self.max_norm > 0 else _leave
        # A schedule that follows a metric moves after evaluations, not after steps.
        follows_metric = isinstance(trainer.lr_scheduler, ReduceLROnPlateau)
        self.advance = _nothing if follows_metric else trainer.lr_scheduler.step
        self.loss_sum = torch.zeros((), device=strategy.device)
        """Since the last log, on the device: reading it would make the host wait for the device at every step."""
        self.grad_norm: Tensor | None = None
        self.learning_rate: Any = None
        """The one this step was made with."""

    def run(self, window: list[Any], items: Tensor | int | None) -> None:
        trainer, events = self.trainer, self.trainer.callback_handler
        args, state = trainer.args, trainer.state
        trainer.current_gradient_accumulation_steps = last = len(window)
        if not self.model.training:
            self.model.train()
        for number, batch in enumerate(window, start=1):
            self.loss_sum += trainer.training_step(self.model, batch, items)
            if number < last:
                trainer.control = events.on_substep_end(args, state, trainer.control)
        self.grad_norm = self.clip(self.parameters, self.max_norm)
        trainer.control = events.on_pre_optimizer_step(args, state, trainer.control)
        self.optimizer.step()
        trainer.control = events.on_optimizer_step(args, state, trainer.control)
        self.learning_rate = self.optimizer.param_groups[0]["lr"]
        self.advance()
        self.optimizer.zero_grad()

    def take_loss(self) -> float:
        """The sum since it was last taken. NaN stays NaN: a filter here would hide a dead run."""
        total = float(self.loss_sum)
        self.loss_sum.zero_()
        return total


def _leave(parameters: Any, max_norm: float) -> None:
    return None


def _nothing() -> None:
    return None
