"""Epochs and steps. What one step does is in step.py; what an event may ask for is in callbacks.py."""

from __future__ import annotations

import dataclasses
import logging
import math
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import count
from typing import TYPE_CHECKING, Any

from footplate.contract.errors import DatasetError
from footplate.trainer import losses
from footplate.trainer.data import Epoch, has_length
from footplate.trainer.out_of_memory import explain
from footplate.trainer.step import Step

if TYPE_CHECKING:
    from footplate.contract.arguments import TrainingArguments
    from footplate.trainer.saving import StoredRng
    from footplate.trainer.trainer import Trainer

log = logging.getLogger("footplate.trainer")


@dataclass(frozen=True, slots=True)
class Plan:
    """How much there is to do, counted before the first step."""

    epochs: int
    steps_per_epoch: int
    """Optimizer steps; the last one of an epoch may have fewer micro-batches."""
    examples: int
    samples: float
    """Over the whole run, for the speed that is logged at its end."""
    step_samples: int
    batches_per_epoch: int
    max_steps: int

    @classmethod
    def of(cls, args: TrainingArguments, loader: Any, step_samples: int, examples: int) -> Plan:
        accumulate = args.gradient_accumulation_steps
        if not has_length(loader):
            if args.max_steps < 0:
                raise ValueError("the data has no length, so nobody can tell when it ends: set max_steps")
            steps, batches = args.max_steps, args.max_steps * accumulate
            return cls(sys.maxsize, steps, steps * step_samples, steps * step_samples, step_samples, batches, steps)
        batches = len(loader)
        if batches == 0:
            raise DatasetError("the training data has no batch: it is empty, or smaller than one batch and dropped")
        in_epoch = math.ceil(batches / accumulate)
        if args.max_steps > 0:
            epochs, steps, samples = math.ceil(args.max_steps / in_epoch), args.max_steps, args.max_steps * step_samples
            return cls(epochs, in_epoch, examples, samples, step_samples, batches, steps)
        steps, seen = math.ceil(args.num_train_epochs * in_epoch), examples * args.num_train_epochs
        return cls(math.ceil(args.num_train_epochs), in_epoch, examples, seen, step_samples, batches, steps)

    def values(self) -> tuple[int, int, int, float, int, int, int]:
        return dataclasses.astuple(self)

    def until(self, max_steps: int) -> Plan:
        """Over the same data, for so many steps in all."""
        samples = max_steps * self.step_samples
        if self.epochs == sys.maxsize:
            batches = self.batches_per_epoch // self.steps_per_epoch * max_steps
            return replace(
                self, steps_per_epoch=max_steps, examples=samples, samples=samples, batches_per_epoch=batches,
                max_steps=max_steps,
            )  # fmt: skip
        return replace(self, epochs=math.ceil(max_steps / self.steps_per_epoch), samples=samples, max_steps=max_steps)

    def micro_batches(self, step: int, accumulate: int) -> int:
        """In optimizer step number `step` of an epoch."""
        if step < self.steps_per_epoch - 1:
            return accumulate
        return self.batches_per_epoch - (self.steps_per_epoch - 1) * accumulate


def run_epochs(trainer: Trainer, step: Step, loader: Any, rng: StoredRng | None) -> None:
    """From where the state stands to the plan's end, which may move meanwhile, or to where a callback stops it.

    `rng` sets the generators back to where the checkpoint was made. It comes last, since everything before it may
    draw: in mid-epoch after the data has been opened, at an epoch's start before.
    """
    loader, plan = trainer.strategy.plain_loader(loader), trainer._plan
    first, done = divmod(trainer.state.global_step, plan.steps_per_epoch)
    skip = done * trainer.args.gradient_accumulation_steps
    if plan.epochs == sys.maxsize:
        # Nobody knows how long a pass over a stream is: the checkpoint says which pass it was in, and where.
        first, skip = (rng.places.get("at", (0, skip))) if rng else (0, 0)
        done = 0
    if trainer.args.ignore_data_skip:
        skip = done = 0
    for epoch in count(first):
        if epoch >= trainer._plan.epochs or trainer.state.global_step >= trainer._plan.max_steps:
            break
        trainer.control = trainer.callback_handler.on_epoch_begin(trainer.args, trainer.state, trainer.control)
        trainer._epoch = Epoch(
            loader,
            seed=trainer.data_seed,
            epoch=epoch,
            skip=skip,
            places=rng.places if rng else None,
            restore=rng.restore if rng else None,
        )
        _run_epoch(trainer, step, epoch, done, skip, trainer.strategy.epoch(trainer._epoch, loader))
        trainer.control = trainer.callback_handler.on_epoch_end(trainer.args, trainer.state, trainer.control)
        log_evaluate_save(trainer)
        trainer._epoch, done, skip, rng = None, 0, 0, None
        if trainer.control.should_training_stop:
            break


def _run_epoch(trainer: Trainer, step: Step, epoch: int, done: int, batch: int, batches: Iterator[Any]) -> None:
    args, state, events = trainer.args, trainer.state, trainer.callback_handler
    accumulate, device = args.gradient_accumulation_steps, trainer.strategy.device
    for number in count(done):
        plan = trainer._plan
        if number >= plan.steps_per_epoch:
            break
        window, items = trainer.get_batch_samples(batches, plan.micro_batches(number, accumulate), device)
        if not window:
            if batch == 0:
                _end_of_all(trainer, plan.max_steps)
            break
        trainer.control = events.on_step_begin(args, state, trainer.control)
        trainer._last_batches = (epoch, batch, len(window))
        try:
            step.run(window, items)
        except (RuntimeError, MemoryError, IndexError) as error:
            told = losses.explain(error, window, trainer.model, trainer.label_names or ("labels",))
            if told is not None:
                raise told from error
            explain(error, window)
            raise
        batch += len(window)
        state.global_step += 1
        state.epoch = epoch + batch / plan.batches_per_epoch
        trainer.control = events.on_step_end(args, state, trainer.control)
        log_evaluate_save(trainer)
        if trainer._background.is_done:
            trainer._finish_save()
        if trainer.control.should_training_stop or trainer.control.should_epoch_stop:
            break


def _end_of_all(trainer: Trainer, max_steps: int) -> None:
    """A pass over a stream gave nothing, and no further one would."""
    step = trainer.state.global_step
    if step == 0:
        raise DatasetError("the training data is a stream that gave no batch: it is empty, or used up already")
    log.warning("the stream gave nothing more: training ends at step %s of %s", step, max_steps)
    trainer.control.should_training_stop = True


def log_evaluate_save(trainer: Trainer) -> None:
    """Does what the control asks for after a step or an epoch, in this order."""
    if trainer.control.should_log and trainer.state.global_step > trainer._last_logged_step:
        trainer._log_training()
    if trainer.control.should_evaluate:
        metrics = trainer._evaluate(None, trainer._ignore_keys_for_eval)
        is_best = trainer._determine_best_metric(metrics, trial=None)
        if trainer.args.save_strategy == "best":
            trainer.control.should_save = is_best
    if trainer.control.should_save:
        trainer._save_or_go_on()
