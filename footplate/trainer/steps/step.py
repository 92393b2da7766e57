"""One optimizer step in one process. The constructor selects functions, so that no step has to check the options."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from torch import Tensor

from footplate.trainer import reporting
from footplate.trainer.collators.choose import require_batch
from footplate.trainer.loss_total import Tally
from footplate.trainer.losses.labels import require_labels
from footplate.trainer.micro_batch import loss_of, share_of_step
from footplate.trainer.named import NamedOptimizers, backward_of
from footplate.trainer.optimizers.groups import rate_of
from footplate.trainer.overrides import Shortcut
from footplate.trainer.precision import LossScale
from footplate.trainer.schedules import follows_a_metric
from footplate.trainer.state import may_be_logged

if TYPE_CHECKING:
    from footplate.trainer.trainer import Trainer

MicroStep = Callable[[Any, Tensor | int | None], Tensor]
"""Forward and backward of one micro-batch. It receives the item count of the accumulation window, and returns the
micro-batch's share of the step's loss, detached."""


class Step:
    """Runs forward and backward of a window of micro-batches, then clips, steps, schedules and clears gradients."""

    def __init__(self, trainer: Trainer) -> None:
        strategy, args = trainer._footplate.strategy, trainer.args
        self.trainer = trainer
        self.model = trainer.model_wrapped
        self.optimizer = strategy.plain_optimizer(trainer.optimizer)
        self.step = strategy.step_of(trainer.optimizer)
        self.micro_step = micro_step(trainer, self.model)
        if not isinstance(self.micro_step, partial):
            self.micro_step = partial(self._first_micro_step, self.micro_step)
        self.count = _counter(trainer)
        # A loss may read `accelerator.sync_gradients`: True in the last micro-batch of a window.
        self.gradient_state = trainer.accelerator.gradient_state
        # The parameters are in the model's order, so that their norm is summed in Hugging Face's order.
        self.parameters = list(trainer.model.parameters())
        self.zeroed = self.parameters + strategy.only_in_optimizer(trainer.model, self.optimizer)
        self.max_norm = args.max_grad_norm
        self.clip = strategy.clip if self.max_norm > 0 else _norm_when_logged(trainer)
        if isinstance(self.optimizer, NamedOptimizers):
            self.clip = self.optimizer.clip
        # A schedule that follows a metric moves after evaluations only.
        follows_metric = follows_a_metric(trainer.lr_scheduler)
        self.advance = _nothing if follows_metric else trainer.lr_scheduler.step
        if strategy.scale is not None and not follows_metric:
            self.advance = partial(_unless_skipped, strategy.scale, trainer.lr_scheduler.step)
        # torch warns if a schedule's optimizer never steps. Here, that optimizer may be Accelerate's unused wrapper.
        stepped_optimizer = getattr(trainer.lr_scheduler, "optimizer", None)
        if stepped_optimizer is not None:
            stepped_optimizer._opt_called = True
        # Schedule-free optimizers hold other weights in evaluation than in training.
        self.optimizer_to_training = getattr(self.optimizer, "train", _nothing)
        self.has_begun = False
        self.tally = Tally(leaves_out_not_finite=args.logging_nan_inf_filter)
        self.grad_norm: Tensor | None = None
        is_own = "_get_learning_rate" in trainer._footplate.overrides
        self.rate: Callable[[], Any] = trainer._get_learning_rate if is_own else partial(rate_of, self.optimizer)
        self.learning_rate: Any = None
        """The learning rate of this step."""

    def run(self, window: list[Any], items: Tensor | int | None) -> None:
        trainer, events = self.trainer, self.trainer.callback_handler
        args, state = trainer.args, trainer.state
        # An evaluation leaves the model in eval mode. Read the model's own flag: DDP's wrapper stays in training mode.
        if not (self.has_begun and trainer.model.training):
            self.to_training()
        self.optimizer_to_training()
        self.accumulate(window, items)
        self.tally.end_step()
        self.grad_norm = self.clip(self.parameters, self.max_norm)
        trainer.control = events.on_pre_optimizer_step(args, state, trainer.control)
        self.step()
        trainer.control = events.on_optimizer_step(args, state, trainer.control)
        self.learning_rate = self.rate()
        self.advance()
        self.zero()

    def to_training(self) -> None:
        """Puts the model and all submodules into train mode.

        The first step always calls this, because a submodule may be in eval mode although the model is not.
        """
        self.model.train()
        self.trainer._footplate.strategy.drop_gathered_weights(self.model)
        self.has_begun = True

    def accumulate(self, window: list[Any], items: Tensor | int | None) -> None:
        trainer, size = self.trainer, len(window)
        trainer.current_gradient_accumulation_steps = size
        for number, batch in enumerate(window, start=1):
            self.gradient_state.sync_gradients = number == size
            self.tally.add(self.micro_step(batch, items))
            self.count(batch)
            if number < size:
                events = trainer.callback_handler
                trainer.control = events.on_substep_end(trainer.args, trainer.state, trainer.control)

    def _first_micro_step(self, micro_step: MicroStep, batch: Any, items: Tensor | int | None) -> Tensor:
        """Checks the keys and labels of the run's first batch, and then runs forward and backward as for any other."""
        require_batch(batch, self.trainer.data_collator)
        require_labels(batch, self.trainer.model, self.trainer.label_names)
        self.micro_step = micro_step
        return micro_step(batch, items)

    def zero(self) -> None:
        for parameter in self.zeroed:
            parameter.grad = None


def micro_step(trainer: Trainer, model: Any) -> MicroStep:
    """Returns the function for one micro-batch: `training_step`, or a faster equivalent if no override needs it."""
    if not trainer._footplate.overrides.allow(Shortcut.TRAINING_STEP):
        return partial(trainer.training_step, model)
    strategy = trainer._footplate.strategy
    to_device, backward = strategy.to_device, backward_of(strategy, trainer.optimizer)
    forced, factor = trainer.loss_is_scaled_for_ga, strategy.loss_factor

    def run_among_others(batch: Any, items: Tensor | int | None) -> Tensor:
        loss, outputs, scaled = loss_of(trainer, model, to_device(batch), items, reads_only_loss=True)
        del outputs  # Large logits would stay in memory until the end of backward.
        if scaled and items is not None:
            loss = loss * factor
        loss = share_of_step(trainer, loss, items, is_scaled=scaled if forced is None else forced)
        backward(loss)
        return loss.detach()

    def run(batch: Any, items: Tensor | int | None) -> Tensor:
        loss, outputs, scaled = loss_of(trainer, model, to_device(batch), items, reads_only_loss=True)
        del outputs  # Large logits would stay in memory until the end of backward.
        if not (scaled if forced is None else forced):
            loss = loss / trainer.current_gradient_accumulation_steps
        backward(loss)
        return loss.detach()

    return run if strategy.readers.world == 1 else run_among_others


def _counter(trainer: Trainer) -> Callable[[Any], None]:
    """Returns the function that counts a batch's floating point operations and tokens, as far as that is requested."""
    counters: list[Callable[[Any], None]] = []
    own_count: Any
    if "floating_point_ops" in trainer._footplate.overrides:
        counters.append(partial(reporting.count_flos, trainer))
    elif (own_count := getattr(trainer.model, "num_parameters", None)) is not None:
        # The parameter count is constant, and counting a large model's parameters takes milliseconds.
        elements = trainer._footplate.strategy.total_elements(own_count(exclude_embeddings=True))
        counters.append(partial(reporting.count_flos_of_tokens, trainer, 6 * elements))
    if trainer.args.include_num_input_tokens_seen != "no":
        counters.append(partial(reporting.count_tokens, trainer))
    return counters[0] if len(counters) == 1 else partial(_call_all, counters) if counters else lambda batch: None


def _call_all(counters: list[Callable[[Any], None]], batch: Any) -> None:
    for count in counters:
        count(batch)


def _norm_when_logged(trainer: Trainer) -> Callable[[Any, float], Tensor | None]:
    """Returns the function that computes the gradient norm only in steps that are logged. It does not clip.

    With a loss scale, the function runs in every step. It scales the gradients back, which callbacks may read.
    """
    args, strategy = trainer.args, trainer._footplate.strategy

    def norm(parameters: Any, max_norm: float) -> Tensor | None:
        if strategy.scale is not None or may_be_logged(args, trainer.state):
            return strategy.clip(parameters, float("inf"))
        return None

    return norm


def _unless_skipped(scale: LossScale, advance: Callable[[], None]) -> None:
    """Advances the schedule, unless fp16's loss scale skipped the step because of an overflow."""
    if not scale.skipped:
        advance()


def _nothing() -> None:
    return None
