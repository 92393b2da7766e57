"""Combines the schedules of several named optimizers into one schedule."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from footplate.trainer.callbacks import TrainerCallback
from footplate.trainer.named.spec import NamedOptimizer

if TYPE_CHECKING:
    from footplate.trainer.named.optimizer import NamedOptimizers


class NamedSchedules:
    """The schedules of several named optimizers. An optimizer without a schedule keeps its learning rate."""

    def __init__(self, optimizer: NamedOptimizers, schedules: Mapping[str, tuple[NamedOptimizer, Any]]) -> None:
        self.optimizer = optimizer
        self._all = dict(schedules)
        self._epochs = 0

    def of(self, name: str) -> Any:
        """Returns the schedule of one optimizer, or None if it has none."""
        return self._all[name][1] if name in self._all else None

    def step(self) -> None:
        """Advances the schedules of the optimizers that stepped in the last optimizer step of the run."""
        for spec, schedule in self._all.values():
            if spec.per == "step" and self.optimizer.steps % spec.every == 0:
                schedule.step()

    def begin_epoch(self, number: int) -> None:
        """Advances schedules that follow epochs to the start of epoch `number`, counted from 0."""
        for _ in range(self._epochs, number):
            for spec, schedule in self._all.values():
                if spec.per == "epoch":
                    # torch warns about a schedule that moves before a step, as happens in a resumed run.
                    schedule.optimizer._opt_called = True
                    schedule.step()
        self._epochs = max(self._epochs, number)

    def get_last_lr(self) -> list[float]:
        return [group["lr"] for group in self.optimizer.param_groups]

    def state_dict(self) -> dict[str, Any]:
        return {
            "epochs": self._epochs,
            "schedules": {name: schedule.state_dict() for name, (_, schedule) in self._all.items()},
        }

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        self._epochs = state_dict["epochs"]
        for name, (_, schedule) in self._all.items():
            schedule.load_state_dict(state_dict["schedules"][name])


class FollowEpochs(TrainerCallback):
    """Advances schedules that follow epochs when an epoch begins. After a resume, catches up on earlier epochs."""

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        schedule = kwargs.get("lr_scheduler")
        if isinstance(schedule, NamedSchedules):
            # Rounded up slightly, because a sum of fractions may end just below a whole number.
            schedule.begin_epoch(int((state.epoch or 0.0) + 1e-6))
