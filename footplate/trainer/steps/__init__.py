"""One optimizer step: in one process, in many, with batches cut to fit, or with samples cut over processes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from footplate.trainer.steps.out_of_memory import FittingStep
from footplate.trainer.steps.step import Step

if TYPE_CHECKING:
    from footplate.trainer.trainer import Trainer


def make_step(trainer: Trainer) -> Step:
    """Returns a new step. The modules for several processes are imported only if there are several."""
    strategy = trainer._footplate.strategy
    if strategy.context_parallel > 1:
        from footplate.trainer.steps.context_parallel_step import ContextParallelStep

        return ContextParallelStep(trainer)
    if strategy.makes_steps_together:
        from footplate.trainer.steps.shared_step import SharedStep

        return SharedStep(trainer)
    return FittingStep(trainer) if trainer.args.auto_find_batch_size else Step(trainer)
