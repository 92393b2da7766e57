"""The size of a run: its epochs, steps and samples."""

from __future__ import annotations

import dataclasses
import math
import sys
from dataclasses import dataclass, replace
from typing import Any

from footplate.contract.arguments import TrainingArguments
from footplate.contract.errors import DatasetError
from footplate.trainer.data import has_length


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
        if args.max_steps > 0:
            epochs, steps, samples = math.ceil(args.max_steps / in_epoch), args.max_steps, args.max_steps * step_samples
            return cls(epochs, in_epoch, examples, samples, step_samples, batches, steps)
        steps, total_samples = math.ceil(args.num_train_epochs * in_epoch), examples * args.num_train_epochs
        return cls(math.ceil(args.num_train_epochs), in_epoch, examples, total_samples, step_samples, batches, steps)

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
        rest = math.ceil((self.batches_per_epoch - batch) / accumulate)
        return (epoch + 1) * self.steps_per_epoch - rest

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
