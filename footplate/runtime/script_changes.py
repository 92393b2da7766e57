"""Live commands for a script that trains with transformers' own Trainer."""

from __future__ import annotations

from typing import Any

from torch.optim.lr_scheduler import LambdaLR

from footplate.trainer.live_changes import CADENCES, Changed, continue_as
from footplate.trainer.strategies.peers import OneProcess


class TransformersRun:
    """A run of transformers' Trainer. Its learning rate and its intervals can change between two steps."""

    def __init__(self, trainer: Any, peers: OneProcess) -> None:
        self._trainer, self.peers = trainer, peers

    def begin_with(self, values: dict[str, Any]) -> None:
        """Sets the intervals. A learning rate needs nothing, because the checkpoint's schedule already has it."""
        intervals = {name: value for name, value in values.items() if name in CADENCES}
        for name, value in intervals.items():
            setattr(self._trainer.args, name, value)
        if intervals:
            self._trainer.state.compute_steps(self._trainer.args, self._trainer.state.max_steps)

    def change(self, values: dict[str, Any]) -> Changed:
        changed = Changed()
        for name, value in values.items():
            before = getattr(self._trainer.args, name, None)
            reason = self._why_not(name, value)
            if reason is not None:
                changed.refused[name] = reason
                continue
            setattr(self._trainer.args, name, value)
            if name == "learning_rate":
                schedule = self._trainer.lr_scheduler
                continue_as(schedule, schedule, value)
            changed.values[name] = (before, value)
        self._trainer.state.compute_steps(self._trainer.args, self._trainer.state.max_steps)
        return changed

    def _why_not(self, name: str, value: Any) -> str | None:
        args, schedule = self._trainer.args, self._trainer.lr_scheduler
        if name in CADENCES:
            strategy = getattr(getattr(args, CADENCES[name]), "value", getattr(args, CADENCES[name]))
            return None if strategy == "steps" else f"{CADENCES[name]} is {str(strategy)!r}, so {name} is not used"
        if name != "learning_rate":
            return f"{name} of a script under transformers' Trainer cannot change while it trains"
        if isinstance(value, dict):
            return "the script has one optimizer, so its learning_rate is a number"
        if not isinstance(schedule, LambdaLR):
            return f"its schedule, {type(schedule).__name__}, is not one that follows learning_rate"
        if any(base != args.learning_rate for base in schedule.base_lrs):
            return "its groups of parameters have different learning rates"
        return None

    def can_evaluate(self) -> bool:
        return self._trainer.eval_dataset is not None

    def learning_rate(self) -> float:
        return float(self._trainer._get_learning_rate())
