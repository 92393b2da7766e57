"""Callbacks that the arguments ask for: each watches one thing, and costs nothing where it was not asked for."""

from __future__ import annotations

import logging
import signal
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from footplate.trainer.callbacks import TrainerCallback
from footplate.trainer.facade import Facade
from footplate.trainer.reporting import describe_step
from footplate.trainer.state import TrainerControl, TrainerState

log = logging.getLogger("footplate.trainer")


def watchers(trainer: Facade) -> list[TrainerCallback]:
    args = trainer.args
    found: list[TrainerCallback] = []
    if args.torch_empty_cache_steps is not None:
        found.append(EmptyCache(args.torch_empty_cache_steps))
    if args.max_nan_steps is not None:
        found.append(StopOnNan(trainer, args.max_nan_steps))
    if args.enable_jit_checkpoint:
        found.append(CheckpointOnSigterm())
    if "underflow_overflow" in args.debug:
        found.append(FindOverflow())
    return found


class EmptyCache(TrainerCallback):
    """Gives cached memory back to the device, every so many steps."""

    def __init__(self, steps: int) -> None:
        from accelerate.utils.memory import clear_device_cache

        self.steps, self.clear = steps, clear_device_cache

    def on_step_begin(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        if state.global_step % self.steps == 0:
            self.clear()


class StopOnNan(TrainerCallback):
    """Ends a run that is dead. It looks every so many steps, since to look is to wait for the device."""

    def __init__(self, trainer: Facade, steps: int) -> None:
        self.trainer, self.steps = trainer, steps

    def on_step_end(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        if state.global_step % self.steps and state.global_step < state.max_steps:
            return
        # A step is lost where one process's part of it is.
        in_a_row = self.trainer._footplate.strategy.peers.most(
            self.trainer._footplate.run.step.tally.not_finite_in_a_row()
        )
        if in_a_row >= self.steps:
            last = state.global_step
            raise FloatingPointError(
                f"the loss was NaN or infinite in {in_a_row} steps in a row, {last - in_a_row + 1} to {last}; the last "
                f"of them {describe_step(self.trainer)}. max_nan_steps is {self.steps}: look at these samples, lower "
                "learning_rate, or raise max_nan_steps"
            )


class CheckpointOnSigterm(TrainerCallback):
    """A machine that is about to be taken away says so by SIGTERM: the step at hand is done, saved, and the last."""

    def __init__(self) -> None:
        self.asked = False
        self._before: Any = None

    def on_train_begin(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        self.asked = False
        try:
            self._before = signal.signal(signal.SIGTERM, self._note)
        except ValueError:
            log.warning(
                "enable_jit_checkpoint listens for SIGTERM, and only the main thread can: it is not listened for"
            )

    def _note(self, number: int, frame: Any) -> None:
        self.asked = True

    def on_step_end(
        self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> TrainerControl | None:
        if self.asked:
            control.should_save = control.should_training_stop = True
        return control

    def on_train_end(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        if self._before is not None:
            signal.signal(signal.SIGTERM, self._before)
            self._before = None


class FindOverflow(TrainerCallback):
    """Ends training where an activation or a weight becomes NaN or infinite, and names the module. Slow: it looks."""

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
                "what goes in": inputs,
                "what comes out": output,
            }
            for place, value in places.items():
                for tensor in _floats(value):
                    if not bool(torch.isfinite(tensor).all()):
                        raise FloatingPointError(
                            f"in step {state.global_step + 1}, {place} of {name} ({type(module).__name__}) is NaN or "
                            f"infinite: {tuple(tensor.shape)}, {tensor.dtype}"
                        )

        return look


def _floats(value: Any) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value] if value.is_floating_point() else []
    if isinstance(value, dict):
        return [each for part in value.values() for each in _floats(part)]
    return [each for part in value for each in _floats(part)] if isinstance(value, (list, tuple)) else []
