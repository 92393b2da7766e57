"""The size of a run in epochs, steps and samples, and the position in the data at which a resumed run continues."""

from __future__ import annotations

import dataclasses
import logging
import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from footplate.contract.arguments import TrainingArguments
from footplate.contract.errors import DatasetError
from footplate.trainer.data import has_length
from footplate.trainer.samplers import Batches

if TYPE_CHECKING:
    from footplate.trainer.trainer import Trainer

log = logging.getLogger("footplate.trainer")


@dataclass(frozen=True, slots=True)
class StepPlan:
    """The numbers of epochs, steps, batches and samples of a run, computed before its first step."""

    epochs: int
    steps_per_epoch: int
    """The number of optimizer steps of an epoch, of which the last may have fewer micro-batches."""
    examples: int
    samples: float
    """The number of samples in the whole run, for the speed that is logged at its end."""
    step_samples: int
    batches_per_epoch: int
    max_steps: int
    shift: int = 0
    """A number that is not 0 only if the run was resumed with another number of samples per step. It is the number of
    steps done, minus the steps of the present size that would have read the same samples."""

    @classmethod
    def of(cls, args: TrainingArguments, loader: Any, step_samples: int, examples: int) -> StepPlan:
        accumulate = args.gradient_accumulation_steps
        if not has_length(loader):
            if args.max_steps < 0:
                raise ValueError("the data has no length, so its end is unknown: set max_steps")
            steps, batches = args.max_steps, args.max_steps * accumulate
            return cls(sys.maxsize, steps, steps * step_samples, steps * step_samples, step_samples, batches, steps)
        batches = len(loader)
        if batches == 0:
            raise DatasetError(
                "the training data has no batch: it is empty, or smaller than one batch with dataloader_drop_last"
            )
        in_epoch = math.ceil(batches / accumulate)
        steps, total_samples = math.ceil(args.num_train_epochs * in_epoch), examples * args.num_train_epochs
        epochs = math.ceil(args.num_train_epochs)
        plan = cls(epochs, in_epoch, examples, total_samples, step_samples, batches, steps)
        return plan.until(args.max_steps) if args.max_steps > 0 else plan

    def values(self) -> tuple[int, int, int, float, int, int, int]:
        return dataclasses.astuple(self)[:-1]

    def shifted(self, shift: int, *, has_limit: bool) -> StepPlan:
        """Returns the plan of a resumed run whose earlier steps had another number of samples (see the field `shift`).

        `has_limit` is True if max_steps is given.
        """
        if has_limit:
            return replace(self, epochs=math.ceil((self.max_steps - shift) / self.steps_per_epoch), shift=shift)
        steps = self.max_steps + shift
        return replace(self, samples=steps * self.step_samples, max_steps=steps, shift=shift)

    def steps_before(self, epoch: int, batch: int, accumulate: int) -> int:
        """Returns the number of this plan's optimizer steps from the start of the data to a micro-batch."""
        remaining_steps = math.ceil((self.batches_per_epoch - batch) / accumulate)
        return (epoch + 1) * self.steps_per_epoch - remaining_steps

    def until(self, max_steps: int) -> StepPlan:
        """Returns the plan of a run over the same data that ends after `max_steps` steps."""
        samples = max_steps * self.step_samples
        if self.epochs == sys.maxsize:
            batches = self.batches_per_epoch // self.steps_per_epoch * max_steps
            return replace(
                self, steps_per_epoch=max_steps, examples=samples, samples=samples, batches_per_epoch=batches,
                max_steps=max_steps,
            )  # fmt: skip
        epochs = math.ceil((max_steps - self.shift) / self.steps_per_epoch)
        return replace(self, epochs=epochs, samples=samples, max_steps=max_steps)

    def micro_batches(self, batch: int, accumulate: int) -> int:
        """Returns the number of micro-batches in the step that begins at micro-batch `batch`. 0 ends the epoch."""
        if self.epochs == sys.maxsize:
            return accumulate  # a stream ends when it gives no more batch
        return max(0, min(accumulate, self.batches_per_epoch - batch))


@dataclass(frozen=True, slots=True)
class DataPosition:
    """The first micro-batch of a run. A new run starts at batch 0 of epoch 0."""

    epoch: int = 0
    batch: int = 0
    """The number of the epoch's micro-batches that each process skips, because they were trained on before."""
    offset: int = 0
    """The number of samples by which the batches of this epoch begin later than at multiples of their size."""
    is_end_left: bool = False
    """True if the checkpoint was saved after the last step of its epoch or run, and before the event on_epoch_end."""


@dataclass(frozen=True, slots=True)
class _StepSize:
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
    size = _StepSize(
        trainer.get_total_train_batch_size(args) // args.gradient_accumulation_steps, args.gradient_accumulation_steps
    )
    old_size = _old_size(trainer, old_args, size)
    if plan.epochs == sys.maxsize:
        # The length of a pass over a stream is unknown, so the checkpoint stores the pass and the position in it.
        epoch, batch = places.get("at", (0, step * old_size.micro_batches))
        batch = 0 if args.ignore_data_skip else batch * old_size.samples // size.samples
        return plan, DataPosition(epoch, batch, is_end_left="is_over" in places)
    is_moved = old_args.get("step_shift") or places.get("offset")
    if args.ignore_data_skip or (old_size == size and not is_moved):
        epoch, steps = divmod(step, plan.steps_per_epoch)
        batch = steps * size.micro_batches
        if old_size == size and "at" in places:
            # The stored position, because an epoch may have had fewer steps than planned.
            epoch, batch = places["at"]
        if args.ignore_data_skip:
            return plan, DataPosition(epoch + ("is_over" in places or batch >= plan.batches_per_epoch))
        return plan, _within(plan, DataPosition(epoch, batch), step, places)
    if "at" in places:
        epoch, batch = places["at"]
    else:
        batches = math.ceil(plan.examples / old_size.samples)
        epoch, steps = divmod(step, math.ceil(batches / old_size.micro_batches))
        batch = steps * old_size.micro_batches
    sample = batch * old_size.samples + places.get("offset", 0)
    position = _at_sample(plan, loader, epoch, sample, size.samples)
    steps = plan.steps_before(position.epoch, position.batch, size.micro_batches)
    plan = plan.shifted(step - steps, has_limit=args.max_steps > 0)
    position = _within(plan, position, step, places)
    if old_size.all_samples != size.all_samples:
        log.warning(
            "a step had %d samples and has %d now: training continues at sample %d of epoch %d, and the rest of the "
            "run is counted in steps of the new size",
            old_size.all_samples,
            size.all_samples,
            sample if position.epoch == epoch else 0,
            position.epoch,
        )
    return plan, position


def _old_size(trainer: Trainer, old_args: Mapping[str, Any], size: _StepSize) -> _StepSize:
    """Returns the step size of the run that wrote the checkpoint. Hugging Face stores only the batch size."""
    micro_batches = old_args.get("gradient_accumulation_steps", size.micro_batches)
    if "samples_per_step" in old_args:
        return _StepSize(old_args["samples_per_step"] // micro_batches, micro_batches)
    batch_size = trainer.state.train_batch_size
    if batch_size is None:
        return size
    return _StepSize(size.samples // trainer._train_batch_size * batch_size, micro_batches)


def _at_sample(plan: StepPlan, loader: Any, epoch: int, sample: int, batch_samples: int) -> DataPosition:
    """Returns the position of a sample. A user's own loader starts at the batch of the sample, which is repeated."""
    batches = getattr(loader, "batch_sampler", None)
    if not (isinstance(batches, Batches) and batches.can_start_within):
        return DataPosition(epoch, sample // batch_samples)
    batch = plan.batches_per_epoch - batches.rounds_from(sample)
    return DataPosition(epoch, batch, sample - batch * batch_samples)


def _within(plan: StepPlan, position: DataPosition, step: int, places: Mapping[str, Any]) -> DataPosition:
    """Returns the position, marked if only the end of its epoch is left, or the start of the next epoch."""
    is_end = "is_over" in places or position.batch >= plan.batches_per_epoch
    if "at" in places and not places.get("has_ended") and (is_end or step == plan.max_steps):
        return replace(position, is_end_left=True)
    return DataPosition(position.epoch + 1) if is_end else position
