"""The position in the data at which a resumed run continues, also if a step has another number of samples now."""

from __future__ import annotations

import logging
import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from footplate.trainer.plan import StepPlan
from footplate.trainer.samplers import Batches

if TYPE_CHECKING:
    from footplate.trainer.trainer import Trainer

log = logging.getLogger("footplate.trainer")


@dataclass(frozen=True, slots=True)
class DataPosition:
    """The first micro-batch of a run. A new run starts at batch 0 of epoch 0."""

    epoch: int = 0
    batch: int = 0
    """The number of the epoch's micro-batches that each process skips, because they were trained on before."""
    offset: int = 0
    """The number of samples by which the batches of this epoch begin later than at multiples of their size."""


@dataclass(frozen=True, slots=True)
class _Step:
    """The size of an optimizer step, in samples and micro-batches."""

    samples: int
    """The number of samples of one micro-batch, over all processes."""
    micro_batches: int

    @property
    def all_samples(self) -> int:
        return self.samples * self.micro_batches


def resumed(
    trainer: Trainer, plan: StepPlan, loader: Any, old_args: Mapping[str, Any], places: Mapping[str, Any]
) -> tuple[StepPlan, DataPosition]:
    """Returns the plan and the position of a run that continues after the state's step.

    `old_args` has the arguments of the run that wrote the checkpoint, and `places` its position in the data. If
    the size of a step has changed, training continues at the same sample, and counts the remaining steps in the new
    size.
    """
    args, step = trainer.args, trainer.state.global_step
    now = _Step(
        trainer.get_total_train_batch_size(args) // args.gradient_accumulation_steps, args.gradient_accumulation_steps
    )
    before = _before(trainer, old_args, now)
    if plan.epochs == sys.maxsize:
        # The length of a pass over a stream is unknown, so the checkpoint stores the pass and the position in it.
        epoch, batch = places.get("at", (0, step * before.micro_batches))
        return plan, DataPosition(epoch, 0 if args.ignore_data_skip else batch * before.samples // now.samples)
    is_moved = old_args.get("step_shift") or places.get("offset")
    if args.ignore_data_skip or (before == now and not is_moved):
        epoch, steps = divmod(step, plan.steps_per_epoch)
        batch = steps * now.micro_batches
        if before == now and "at" in places:
            # The stored position, because an epoch may have had fewer steps than planned.
            epoch, batch = places["at"]
        if batch >= plan.batches_per_epoch:
            epoch, batch = epoch + 1, 0
        return plan, DataPosition(epoch, 0 if args.ignore_data_skip else batch)
    if "at" in places:
        epoch, batch = places["at"]
    else:
        batches = math.ceil(plan.examples / before.samples)
        epoch, steps = divmod(step, math.ceil(batches / before.micro_batches))
        batch = steps * before.micro_batches
    sample = batch * before.samples + places.get("offset", 0)
    position = _at_sample(plan, loader, epoch, sample, now.samples)
    if before.all_samples != now.all_samples:
        log.warning(
            "a step had %d samples and has %d now: training continues at sample %d of epoch %d, and the rest of the "
            "run is counted in steps of the new size",
            before.all_samples,
            now.all_samples,
            sample if position.epoch == epoch else 0,
            position.epoch,
        )
    steps = plan.steps_before(position.epoch, position.batch, now.micro_batches)
    return plan.shifted(step - steps, has_limit=args.max_steps > 0), position


def _before(trainer: Trainer, old_args: Mapping[str, Any], now: _Step) -> _Step:
    """Returns the samples per step of the run that wrote the checkpoint. Hugging Face stores only the batch size."""
    micro_batches = old_args.get("gradient_accumulation_steps", now.micro_batches)
    if "samples_per_step" in old_args:
        return _Step(old_args["samples_per_step"] // micro_batches, micro_batches)
    size = trainer.state.train_batch_size
    return now if size is None else _Step(now.samples // trainer._train_batch_size * size, micro_batches)


def _at_sample(plan: StepPlan, loader: Any, epoch: int, sample: int, batch_samples: int) -> DataPosition:
    """Returns the position of a sample. A user's own loader starts at the batch of the sample, which is repeated."""
    batches = getattr(loader, "batch_sampler", None)
    if not (isinstance(batches, Batches) and batches.can_start_within):
        position = DataPosition(epoch, sample // batch_samples)
    else:
        batch = plan.batches_per_epoch - batches.rounds_from(sample)
        position = DataPosition(epoch, batch, sample - batch * batch_samples)
    return DataPosition(epoch + 1) if position.batch >= plan.batches_per_epoch else position
