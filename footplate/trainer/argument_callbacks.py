"""Collects the callbacks of a Trainer, with those that an argument such as `max_nan_steps` adds."""

from __future__ import annotations

import logging
import signal
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from footplate.trainer.callbacks import DEFAULT_CALLBACKS, CallbackHandler, TrainerCallback, progress_callback
from footplate.trainer.named import FollowEpochs
from footplate.trainer.reporting import describe_step
from footplate.trainer.state import TrainerControl, TrainerState
from footplate.trainer.strategies.device_copy import tensors_in
from footplate.trainer.tracker_callbacks import reporters

if TYPE_CHECKING:
    from footplate.trainer.trainer import Trainer

log = logging.getLogger("footplate.trainer")


def callback_handler(trainer: Trainer, callbacks: Sequence[Any]) -> CallbackHandler:
    """Returns the handler of all callbacks: the Trainer's own, then the user's, and last the one that shows logs.

    A callback sees the control flags that earlier callbacks set, and may change a log before it is shown.
    """
    if not isinstance(callbacks, Iterable):
        raise TypeError(f"callbacks is a {type(callbacks).__name__}: pass a list of callbacks")
    internals = trainer._footplate
    every = [
        *(kind() for kind in DEFAULT_CALLBACKS),
        *([FollowEpochs()] if internals.named_optimizers else []),
        *reporters(trainer),
        *_callbacks_of_arguments(trainer),
        *callbacks,
        progress_callback(trainer.args),
    ]
    return internals.strategy.callback_handler(
        every, trainer.model, trainer.processing_class, trainer.optimizer, trainer.lr_scheduler
    )


def _callbacks_of_arguments(trainer: Trainer) -> list[TrainerCallback]:
    args = trainer.args
    callbacks: list[TrainerCallback] = []
    if args.torch_empty_cache_steps is not None:
        callbacks.append(EmptyCache(args.torch_empty_cache_steps))
    if args.max_nan_steps is not None:
        callbacks.append(StopOnNan(trainer, args.max_nan_steps))
    if args.enable_jit_checkpoint:
        callbacks.append(CheckpointOnSigterm())
    if "underflow_overflow" in args.debug:
        callbacks.append(FindOverflow())
    return callbacks


class EmptyCache(TrainerCallback):
    """Empties torch's cache of device memory every `torch_empty_cache_steps` steps."""

    def __init__(self, steps: int) -> None:
        from accelerate.utils.memory import clear_device_cache

        self.steps, self.clear = steps, clear_device_cache

    def on_step_begin(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        if state.global_step % self.steps == 0:
            self.clear()


class StopOnNan(TrainerCallback):
    """Stops a run whose losses are NaN. It checks every `max_nan_steps` steps, because a check waits for the device."""

    def __init__(self, trainer: Trainer, steps: int) -> None:
        self.trainer, self.steps = trainer, steps

    def on_step_end(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        if state.global_step % self.steps and state.global_step < state.max_steps:
            return
        # A step counts as NaN if its loss was NaN on any process.
        internals = self.trainer._footplate
        in_a_row = max(internals.strategy.peers.all_gather(internals.run.step.tally.not_finite_in_a_row()))
        if in_a_row >= self.steps:
            step = state.global_step
            raise FloatingPointError(
                f"the loss was NaN or infinite in {in_a_row} steps in a row, {step - in_a_row + 1} to {step}; the last "
                f"of them {describe_step(self.trainer)}. max_nan_steps is {self.steps}: check these samples, lower "
                "learning_rate, or raise max_nan_steps"
            )


class CheckpointOnSigterm(TrainerCallback):
    """Finishes the current step after SIGTERM, saves a checkpoint and stops training (`enable_jit_checkpoint`)."""

    def __init__(self) -> None:
        self.was_signalled = False
        self._before: Any = None

    def on_train_begin(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        self.was_signalled = False
        try:
            self._before = signal.signal(signal.SIGTERM, self._on_signal)
        except ValueError:
            log.warning(
                "enable_jit_checkpoint has no effect, because only the main thread can set a handler for SIGTERM"
            )

    def _on_signal(self, number: int, frame: Any) -> None:
        self.was_signalled = True

    def on_step_end(
        self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> TrainerControl | None:
        if self.was_signalled:
            control.should_save = control.should_training_stop = True
        return control

    def on_train_end(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        if self._before is not None:
            signal.signal(signal.SIGTERM, self._before)
            self._before = None


class FindOverflow(TrainerCallback):
    """Stops if an activation or a weight becomes NaN or infinite, and names the module. Checking makes steps slow."""

    def __init__(self) -> None:
        self._hooks: list[Any] = []

    def on_train_begin(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        model: nn.Module = kwargs["model"]
        self._hooks = [
            module.register_forward_hook(self._looking(name or type(module).__name__, state))
            for name, module in model.named_modules()
        ]

    def on_train_end(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()

    def _looking(self, name: str, state: TrainerState) -> Callable[[nn.Module, Any, Any], None]:
        def look(module: nn.Module, inputs: Any, output: Any) -> None:
            places = {
                "a weight": list(module.parameters(recurse=False)),
                "an input": inputs,
                "an output": output,
            }
            for place, value in places.items():
                for tensor in tensors_in(value):
                    if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
                        raise FloatingPointError(
                            f"in step {state.global_step + 1}, {place} of {name} ({type(module).__name__}) is NaN or "
                            f"infinite: {tuple(tensor.shape)}, {tensor.dtype}"
                        )

        return look
