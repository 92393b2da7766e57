"""Tools for tests of training, such as a fingerprint of a Trainer's state that can be compared bit by bit."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from typing import Any

import numpy
import torch

from footplate.trainer.callbacks import EVENTS, Control, TrainerCallback
from footplate.trainer.seeds import rng_state
from footplate.trainer.state import TrainerControl, TrainerState


class StopAt(TrainerCallback):
    """A callback that saves a checkpoint and stops training after a given step."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_step_end(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> Control:
        if state.global_step == self.step:
            control.should_save = control.should_training_stop = True
        return control


class Events(TrainerCallback):
    """A callback that records the name of every event, the logs and the checkpoints."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.logs: list[dict[str, Any]] = []
        self.checkpoints: list[Any] = []
        for event in EVENTS:
            setattr(self, event, self._recorder(event))

    def _recorder(self, event: str) -> Any:
        def record(args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
            self.names.append(event)
            if event == "on_log":
                self.logs.append({**kwargs["logs"], "step": state.global_step})
            if event == "on_save":
                self.checkpoints.append(kwargs["checkpoint"])

        return record

    @property
    def losses(self) -> list[float]:
        return [entry["loss"] for entry in self.logs if "loss" in entry]


@dataclass(frozen=True)
class Fingerprint:
    """Hashes of the weights, the optimizer, the schedule and the random generators, and the losses so far."""

    weights: str
    optimizer: str
    schedule: str
    rng: str
    losses: list[float] = field(default_factory=list)


def fingerprint(trainer: Any, losses: list[float]) -> Fingerprint:
    optimizer = trainer._footplate.strategy.plain_optimizer(trainer.optimizer).state_dict()
    schedule = {name: value for name, value in trainer.lr_scheduler.state_dict().items() if name != "lr_lambdas"}
    return Fingerprint(
        weights=digest(trainer.model.state_dict()),
        optimizer=digest(optimizer),
        schedule=digest(schedule),
        rng=digest(rng_state()),
        losses=losses,
    )


def digest(value: Any) -> str:
    """Returns the sha256 of nested containers of tensors, arrays and numbers, exact to the last bit."""
    return hashlib.sha256(_bytes(value)).hexdigest()


def _bytes(value: Any) -> bytes:
    if isinstance(value, torch.Tensor):
        return _bytes(value.detach().cpu().contiguous().view(torch.uint8).numpy() if value.dim() else value.item())
    if isinstance(value, numpy.ndarray):
        return value.tobytes()
    if isinstance(value, dict):
        return b"{" + b",".join(_bytes(key) + b":" + _bytes(item) for key, item in value.items()) + b"}"
    if isinstance(value, (list, tuple)):
        return b"[" + b",".join(_bytes(item) for item in value) + b"]"
    return json.dumps(value).encode() if not isinstance(value, float) else value.hex().encode()
