"""Gives all processes the same control flags, because a callback or a signal may set a flag in one process only."""

from __future__ import annotations

from dataclasses import astuple, fields
from typing import Any

from footplate.trainer.callbacks import CallbackHandler
from footplate.trainer.state import TrainerControl, TrainerState
from footplate.trainer.strategies.peers import OneProcess

FLAGS = tuple(field.name for field in fields(TrainerControl))
_STOPS = ("should_training_stop", "should_epoch_stop")


class AgreeingHandler(CallbackHandler):
    """A CallbackHandler that exchanges the control flags after every step, epoch and evaluation.

    Logs and saves may run in one process alone, so flags are not exchanged after them. A stop that is requested in
    `on_log` or `on_save` takes effect at the next exchange.
    """

    def __init__(self, peers: OneProcess, *args: Any) -> None:
        self._peers, self._postponed = peers, dict.fromkeys(FLAGS, False)
        super().__init__(*args)

    def on_step_end(self, args: Any, state: TrainerState, control: TrainerControl) -> TrainerControl:
        return self._agreed(super().on_step_end(args, state, control))

    def on_epoch_end(self, args: Any, state: TrainerState, control: TrainerControl) -> TrainerControl:
        return self._agreed(super().on_epoch_end(args, state, control))

    def on_evaluate(
        self, args: Any, state: TrainerState, control: TrainerControl, metrics: dict[str, float]
    ) -> TrainerControl:
        return self._agreed(super().on_evaluate(args, state, control, metrics))

    def on_log(self, args: Any, state: TrainerState, control: TrainerControl, logs: dict[str, Any]) -> TrainerControl:
        before = self._stops(control)
        return self._postpone_stop(before, super().on_log(args, state, control, logs))

    def on_save(
        self, args: Any, state: TrainerState, control: TrainerControl, checkpoint: Any = None
    ) -> TrainerControl:
        before = self._stops(control)
        return self._postpone_stop(before, super().on_save(args, state, control, checkpoint))

    def _agreed(self, control: TrainerControl) -> TrainerControl:
        wanted = [flag or self._postponed[name] for name, flag in zip(FLAGS, astuple(control), strict=True)]
        for name, flag in zip(FLAGS, self._peers.any(wanted), strict=True):
            setattr(control, name, flag)
            self._postponed[name] = False
        return control

    def _stops(self, control: TrainerControl) -> list[bool]:
        return [getattr(control, name) for name in _STOPS]

    def _postpone_stop(self, before: list[bool], control: TrainerControl) -> TrainerControl:
        for name, was in zip(_STOPS, before, strict=True):
            if getattr(control, name) and not was:
                self._postponed[name] = True
                setattr(control, name, False)
        return control
