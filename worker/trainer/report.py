"""Trackers: what is logged goes to TensorBoard, W&B, MLflow and the others that Accelerate speaks to."""

from __future__ import annotations

import os
import socket
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from contract.errors import NotAvailableYet, did_you_mean
from worker.trainer.callbacks import TrainerCallback
from worker.trainer.state import TrainerControl, TrainerState

if TYPE_CHECKING:
    from worker.trainer.trainer import Trainer

KNOWN = ("aim", "clearml", "comet_ml", "dvclive", "mlflow", "swanlab", "tensorboard", "trackio", "wandb")
NOT_HERE = ("azure_ml", "codecarbon", "dagshub", "flyte", "kubeflow", "neptune")
"""The reference has callbacks for these, and Accelerate has no tracker."""


def reporters(trainer: Trainer) -> list[TrainerCallback]:
    """One callback for all that `report_to` names. What is unknown or not installed is said now, not at a log."""
    asked = trainer.args.report_to
    if not asked:
        return []  # looking for what is installed takes milliseconds of every start
    return [ReportCallback(trainer, chosen([asked] if isinstance(asked, str) else list(asked)))]


def chosen(asked: list[str]) -> list[str]:
    from accelerate.tracking import get_available_trackers

    installed = {str(each.value) for each in get_available_trackers()}
    if asked == ["all"]:
        return sorted(installed)
    for name in asked:
        if name in NOT_HERE:
            raise NotAvailableYet(
                f"report_to names {name}, which is not available yet",
                hint=f"use one of {', '.join(KNOWN)}, or a callback",
            )
        if name not in KNOWN:
            hint = did_you_mean(name, KNOWN) or f"known are {', '.join(KNOWN)}, all and none"
            raise ValueError(f"report_to names {name!r}, which is no tracker: {hint}")
        if name not in installed:
            raise ImportError(f"report_to names {name}, which is not installed here: pip install {name}")
    return list(asked)


class ReportCallback(TrainerCallback):
    """Opened when training begins or something is logged, closed when it ends, also by an error."""

    def __init__(self, trainer: Trainer, names: list[str]) -> None:
        self.trainer, self.names = trainer, names
        self._is_open = False

    def on_train_begin(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        if not self._is_open and state.is_world_process_zero:
            self._open(args, state)

    def on_log(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        if not state.is_world_process_zero:
            return
        if not self._is_open:
            self._open(args, state)
        values = {_in_its_section(name): value for name, value in kwargs["logs"].items() if _is_value(value)}
        self.trainer.accelerator.log(values, step=state.global_step)

    def on_train_end(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        if self._is_open:
            self._is_open = False
            for tracker in self.trainer.accelerator.trackers:
                tracker.finish()
            self.trainer.accelerator.trackers = []

    def _open(self, args: Any, state: TrainerState) -> None:
        accelerator, name = self.trainer.accelerator, run_name(args, state)
        accelerator.log_with = list(self.names)
        accelerator.project_configuration.logging_dir = str(logging_dir(args))
        settings = {key: value for key, value in args.to_dict().items() if isinstance(value, (bool, int, float, str))}
        # Those that have runs within projects are told both; those that have a folder only call it after the run.
        with_runs: dict[str, dict[str, Any]] = {
            "wandb": {"name": name},
            "trackio": {"name": name},
            "mlflow": {"run_name": name},
        }
        project = args.project if set(self.names) & set(with_runs) else name
        accelerator.init_trackers(project, settings, {each: with_runs.get(each, {}) for each in self.names})
        self._is_open = True


def run_name(args: Any, state: TrainerState) -> str:
    return str(state.trial_name or args.run_name or Path(args.output_dir).name)


def logging_dir(args: Any) -> Path:
    """TENSORBOARD_LOGGING_DIR, as the reference has it; else a folder of this moment and machine below output_dir."""
    named = args.logging_dir or os.environ.get("TENSORBOARD_LOGGING_DIR")
    if named:
        return Path(named).expanduser()
    return Path(args.output_dir) / "runs" / f"{time.strftime('%b%d_%H-%M-%S')}_{socket.gethostname()}"


def _is_value(value: Any) -> bool:
    return isinstance(value, (int, float, str))


def _in_its_section(name: str) -> str:
    for prefix in ("eval", "test"):
        if name.startswith(f"{prefix}_"):
            return f"{prefix}/{name.removeprefix(f'{prefix}_')}"
    return f"train/{name}"
