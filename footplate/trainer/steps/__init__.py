"""The kinds of an optimizer step.

- `step.py`: in one process
- `out_of_memory.py`: in one process, with micro-batches that are split if they do not fit into memory
- `shared_step.py`: in several processes
- `context_parallel_step.py`: in several processes, over which samples are split
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from footplate.trainer.steps.out_of_memory import FittingStep
from footplate.trainer.steps.step import Step

if TYPE_CHECKING:
    from footplate.trainer.trainer import Trainer


def make_step(trainer: Trainer) -> Step:
    """Returns the kind of step that the strategy and the arguments need."""
    strategy = trainer._footplate.strategy
    if strategy.context_parallel > 1:
        from footplate.trainer.steps.context_parallel_step import ContextParallelStep

        return ContextParallelStep(trainer)
    if strategy.makes_steps_together:
        from footplate.trainer.steps.shared_step import SharedStep

        return SharedStep(trainer)
    return FittingStep(trainer) if trainer.args.auto_find_batch_size else Step(trainer)
