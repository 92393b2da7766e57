"""The attributes of a Trainer that Hugging Face's does not have.

All of them are in one object, `trainer._footplate`, so that a subclass may use any other name for its own attributes.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from footplate.trainer.background_save import BackgroundSave
from footplate.trainer.memory import MemoryMeter
from footplate.trainer.overrides import Overrides

if TYPE_CHECKING:
    from footplate.trainer.checkpoint import Checkpoint
    from footplate.trainer.data import Epoch
    from footplate.trainer.metrics.choose import BatchMetric
    from footplate.trainer.model_signature import ModelSignature
    from footplate.trainer.named import NamedOptimizer
    from footplate.trainer.plan import StepPlan
    from footplate.trainer.steps.step import Step
    from footplate.trainer.strategies.single import Single

log = logging.getLogger("footplate.trainer")


@dataclass
class Run:
    """The state of one call of `train()` that Hugging Face's TrainerState does not have."""

    ignore_keys: list[str] | None = None
    """The argument `ignore_keys_for_eval` of `train()`."""
    plan: StepPlan = field(init=False)
    step: Step = field(init=False)
    epoch: Epoch | None = None
    """The current pass over the data."""
    batches: tuple[int, int, int] = (0, 0, 0)
    """Epoch, first batch and number of batches of the current step."""
    start_time: float = 0.0
    """The wall-clock time in seconds at which training started. A user's own `log` receives it."""
    first_step: int = 0
    first_token: int = 0
    last_logged_step: int = 0
    loss_taken: float = 0.0
    """The sum of the losses that were logged."""
    committed: Checkpoint | None = None
    """The checkpoint committed last. It is stored here, because a subclass's `_save_checkpoint` may not return it."""
    failed_saves: int = 0
    """The number of saves in a row that failed."""


@dataclass(frozen=True, slots=True)
class SaveFailed:
    """A checkpoint that could not be written. Training continues, and the older checkpoint remains."""

    step: int
    error: str
    failures_in_a_row: int
    will_go_on: bool


def warn_that_saving_failed(failed: SaveFailed) -> None:
    what_next = "training continues" if failed.will_go_on else "training stops"
    log.warning("%s (failed saves in a row: %d): %s", failed.error, failed.failures_in_a_row, what_next)


@dataclass
class CheckpointHooks:
    """Functions by which a program that runs the Trainer takes part in saving checkpoints."""

    stamp: dict[str, Any] = field(default_factory=dict)
    """Values that are written into every checkpoint's manifest."""
    on_save_failed: Callable[[SaveFailed], None] = warn_that_saving_failed
    """Called when a checkpoint could not be written, for example on a full disk."""
    where_is: Callable[[str], str] = str
    """Returns the present path of a checkpoint whose stored path may be that of another machine."""
    relied_on: Callable[[], set[Path]] = set
    """Returns checkpoints that must not be deleted, because the program may continue from them."""


@dataclass
class Search:
    """A hyperparameter search in progress."""

    space: Callable[[Any], Mapping[str, Any]]
    objective: Callable[[dict[str, float]], Any]
    name: Callable[[Any], str]
    before: dict[str, Any]
    """The arguments' values before the search."""
    current_objective: Any = None
    """The objective of the current trial after its last evaluation."""


@dataclass
class Internals:
    """The state that Hugging Face's Trainer does not have, such as the strategy, in `trainer._footplate`."""

    overrides: Overrides
    memory: MemoryMeter
    metrics: list[str | Callable[[], BatchMetric]]
    """The metrics that stream through an evaluation: their names, or functions that make them."""
    given_model: Any = None
    """The model that the script passed."""
    strategy: Single = field(init=False)
    """The strategy, for one process or for several."""
    model_signature: ModelSignature = field(init=False)
    """The facts about the model that its class and signature show."""
    model_divides_by_items: bool | None = None
    """True if a model that takes `num_items_in_batch` divides its loss by it. None until the first step detects it."""
    loss_is_scaled: bool | None = None
    """True if the last loss is already a share of its accumulation window's loss. None if `compute_loss` did not set
    this."""
    batch_weight: float = 1.0
    """The weight of this process's micro-batch among those of all processes, by samples. 0 for a padding batch."""
    counts_full_batches: bool = False
    """True if a smaller last batch of an evaluation has the weight of a full one in the mean loss."""
    named_optimizers: list[NamedOptimizer] = field(default_factory=list)
    """The settings of each of several optimizers. Empty if there is one optimizer."""
    made_schedule: bool = False
    """True if the Trainer made the schedule. Another call of `train()` then makes a new one."""
    hooks: CheckpointHooks = field(default_factory=CheckpointHooks)
    background: BackgroundSave | None = None
    """The checkpoint that is being written in the background."""
    eval_sets: dict[str | None, Any] = field(default_factory=dict)
    """The datasets of the loaders in `trainer._eval_dataloaders`."""
    columns_left_out: set[Any] = field(default_factory=set)
    """The columns that were logged as left out of the data."""
    arguments_pickle: bool = True
    """False once the arguments could not be pickled, which is logged only once."""
    hub_api: Any = None
    pushes: dict[Future[Any], Path] = field(default_factory=dict)
    """The uploads to the hub in progress. Each has a folder, which must remain until the upload has ended."""
    search: Search | None = None
    trial: Any = None
    run: Run = field(default_factory=Run)
