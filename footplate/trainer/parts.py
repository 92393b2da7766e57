"""What a Trainer holds. Its methods are parted by what they are about; each part knows the whole by these names."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from footplate.trainer.arguments import TrainingArguments
from footplate.trainer.background import Background
from footplate.trainer.callbacks import CallbackHandler
from footplate.trainer.model_signature import Anatomy
from footplate.trainer.state import TrainerControl, TrainerState

if TYPE_CHECKING:
    from footplate.trainer.argument_callbacks import Memory
    from footplate.trainer.data import Epoch
    from footplate.trainer.hub import Push
    from footplate.trainer.loop import Plan
    from footplate.trainer.losses import LabelSmoother
    from footplate.trainer.metrics import Metric
    from footplate.trainer.named import NamedOptimizer
    from footplate.trainer.overrides import Overrides
    from footplate.trainer.saving import SaveFailed
    from footplate.trainer.step import Step
    from footplate.trainer.strategies.single import Single


class Parts:
    _overrides: Overrides
    args: TrainingArguments
    strategy: Single
    """Where and how it runs: one process, or many. The loop never asks which."""
    accelerator: Any

    model: nn.Module
    """The user's own."""
    model_wrapped: nn.Module
    """What is called in a step: the model, in whatever the strategy put around it."""
    is_model_parallel: bool
    place_model_on_device: bool
    """Some are where they must be already: in parts, or in few bits."""
    model_init: Callable[..., nn.Module] | None
    anatomy: Anatomy
    label_names: list[str]
    """The batch's keys that are labels."""
    model_accepts_loss_kwargs: bool
    model_divides_by_items: bool | None
    """Whether a model that takes `num_items_in_batch` divides its loss by it; None before that was found out."""
    can_return_loss: bool

    train_dataset: Any
    eval_dataset: Any
    data_collator: Callable[[Sequence[Any]], Any]
    processing_class: Any

    compute_loss_func: Callable[..., Tensor] | None
    compute_metrics: Callable[..., dict[str, Any]] | None
    preprocess_logits_for_metrics: Callable[[Any, Any], Any] | None
    label_smoother: LabelSmoother | None
    metrics: list[str | Callable[[], Metric]]

    optimizer: Any
    lr_scheduler: Any
    named_optimizers: list[NamedOptimizer]
    """What each of several was asked to be; empty where there is one."""
    optimizer_cls_and_kwargs: tuple[Any, dict[str, Any]] | None
    made_schedule: bool
    """The schedule is ours: another `train()` makes another."""

    state: TrainerState
    control: TrainerControl
    callback_handler: CallbackHandler
    is_in_train: bool
    current_gradient_accumulation_steps: float
    """Micro-batches in the window at hand; the last one of an epoch may have fewer."""
    current_flos: float
    """Floating point operations since they were last stored in the state."""

    checkpoint_stamp: dict[str, Any]
    """What to write into every checkpoint's manifest."""
    on_save_failed: Callable[[SaveFailed], None]
    """Told when a disk is full."""
    where_is: Callable[[str], str]
    """A checkpoint that was written down by its path, on a machine that may have had another one for it."""
    relied_on: Callable[[], set[Path]]
    """Which checkpoints somebody outside may come back to, so that rotation leaves them."""

    hub_model_id: str | None
    """The repository that is pushed to, once it is known."""
    _pushes: list[Push]
    _train_batch_size: int
    _ignore_keys_for_eval: list[str] | None
    _eval_loaders: dict[str | None, tuple[Any, Any]]
    """Of our own evaluation sets, with the set that each was made for, where their processes persist."""
    _plan: Plan
    _step: Step
    _epoch: Epoch | None
    _last_batches: tuple[int, int, int]
    """Epoch, first batch and number of batches of the step at hand."""
    _memory: Memory
    _started: float
    """By the wall clock, since a `log` of the user's own is handed it."""
    _first_step: int
    _first_token: int
    _last_logged_step: int
    _loss_taken: float
    _loss_is_scaled: bool | None
    _failed_saves: int
    _background: Background
    """The checkpoint that is being written beside training."""
