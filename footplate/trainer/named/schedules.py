"""Several schedules as one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from footplate.trainer.callbacks import TrainerCallback
from footplate.trainer.named.spec import NamedOptimizer


class Steps(Protocol):
    """What schedules read of the optimizers together."""

    @property
    def steps(self) -> int: ...
    @property
    def param_groups(self) -> list[dict[str, Any]]: ...


class NamedSchedules:
    """Each optimizer's own; one without a schedule keeps its rate."""

    def __init__(self, optimizer: Steps, made: Mapping[str, tuple[NamedOptimizer, Any]]) -> None:
        self.optimizer = optimizer
        self._all = dict(made)
        self._epochs = 0

    def of(self, name: str) -> Any:
        """The schedule of one optimizer; None where it has none."""
        return self._all[name][1] if name in self._all else None

    def step(self) -> None:
        """After an optimizer step of the run: moves those whose optimizer has just stepped."""
        for spec, schedule in self._all.values():
            if spec.per == "step" and self.optimizer.steps % spec.every == 0:
                schedule.step()

    def begin_epoch(self, number: int) -> None:
        """Moves those that follow epochs to where they are when epoch `number`, counted from 0, begins."""
        for _ in range(self._epochs, number):
            for spec, schedule in self._all.values():
                if spec.per == "epoch":
                    # torch takes the first move before a step for a mistake; a run that is resumed makes it.
                    schedule.optimizer._opt_called = True
                    schedule.step()
        self._epochs = max(self._epochs, number)

    def get_last_lr(self) -> list[float]:
        return [group["lr"] for group in self.optimizer.param_groups]

    def state_dict(self) -> dict[str, Any]:
        return {"epochs": self._epochs, "schedules": {name: each.state_dict() for name, (_, each) in self._all.items()}}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        self._epochs = state_dict["epochs"]
        for name, (_, schedule) in self._all.items():
            schedule.load_state_dict(state_dict["schedules"][name])


class FollowEpochs(TrainerCallback):
    """Tells schedules that follow epochs when one begins; a run that is resumed tells what it missed."""

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        schedule = kwargs.get("lr_scheduler")
        if isinstance(schedule, NamedSchedules):
            # A hair more: sums of fractions may stop short of the whole.
            schedule.begin_epoch(int((state.epoch or 0.0) + 1e-6))
