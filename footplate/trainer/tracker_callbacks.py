"""Trackers: what is logged goes to TensorBoard, W&B, MLflow and the others that Accelerate speaks to."""

from __future__ import annotations

import os
import socket
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from footplate.contract.arguments.libraries import TRACKERS
from footplate.contract.errors import NotAvailableYet, did_you_mean
from footplate.trainer.callbacks import TrainerCallback
from footplate.trainer.facade import Facade
from footplate.trainer.state import TrainerControl, TrainerState

NOT_HERE = ("azure_ml", "codecarbon", "dagshub", "flyte", "kubeflow", "neptune")
"""The reference has callbacks for these, and Accelerate has no tracker."""


def reporters(trainer: Facade) -> list[TrainerCallback]:
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
                hint=f"use one of {', '.join(TRACKERS)}, or a callback",
            )
        if name not in TRACKERS:
            hint = did_you_mean(name, TRACKERS) or f"known are {', '.join(TRACKERS)}, all and none"
            raise ValueError(f"report_to names {name!r}, which is no tracker: {hint}")
        if name not in installed:
            how = f"pip install {TRACKERS[name].install}"
            raise ImportError(f"report_to names {name}, which is not installed here: {how}")
    return list(asked)


class ReportCallback(TrainerCallback):
    """Opened when training begins or something is logged, closed when it ends, also by an error."""

    def __init__(self, trainer: Facade, names: list[str]) -> None:
        self.trainer, self.names = trainer, names
        self.trackers: list[Any] = []
        """Of the run at hand. One that was closed is opened again where it was, when something is logged later."""

    def on_train_begin(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        if state.is_hyper_param_search:
            self._close(self.trackers)
            self.trackers = []  # every trial is a run of its own
        self._open(args, state)

    def on_log(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        self._tell(args, state, kwargs["logs"])

    def on_predict(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        self._tell(args, state, kwargs["metrics"])

    def on_save(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        folder = kwargs["checkpoint"].path if kwargs.get("checkpoint") is not None else None
        for each in self.trackers if folder is not None else ():
            if hasattr(each, "keep"):
                each.keep(folder, state.epoch or 0.0, state.global_step)

    def on_push_begin(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        for each in self.trackers:
            if hasattr(each, "publish"):
                each.publish()

    def on_train_end(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        failed = sys.exc_info()[0] is not None
        if not failed:
            self._keep_last_model()
        self._close([each for each in self.trackers if failed or not getattr(each, "stays_open", False)])

    def _keep_last_model(self) -> None:
        """Every process has a part in saving a model; the main one tells the tracker."""
        from footplate.trainer.trackers import Wandb, keeps_the_last_model

        if keeps_the_last_model(self.names):
            with TemporaryDirectory() as folder:
                self.trainer.save_model(folder, _internal_call=True)
                for each in self.trackers:
                    if isinstance(each, Wandb):
                        each.keep_last(Path(folder))

    def _tell(self, args: Any, state: TrainerState, logs: dict[str, Any]) -> None:
        from footplate.trainer.trackers import tell

        self._open(args, state)
        values = {name: value for name, value in logs.items() if _is_value(value)}
        for each in self.trackers:
            tell(each, values, state.global_step)

    def _open(self, args: Any, state: TrainerState) -> None:
        """Those that are not open. The arguments are told to a run once."""
        if not state.is_world_process_zero:
            return
        from footplate.trainer.trackers import About, tracker

        accelerator, settings = self.trainer.accelerator, None
        if not self.trackers:
            name = run_name(args, state)
            model, strategy = self.trainer.model, self.trainer._footplate.strategy
            size = sum(strategy.elements(each) for each in model.parameters())
            folder, every = logging_dir(args), int(state.logging_steps)
            about = About(args, model, name, state.trial_name, folder, every, state.global_step)
            self.trackers, settings = [tracker(each, about) for each in self.names], _settings(args, model, size)
        closed = [each for each in self.trackers if each not in accelerator.trackers]
        if closed:
            open_ones, accelerator.trackers = accelerator.trackers, []
            accelerator.log_with = closed
            accelerator.init_trackers("", settings)
            accelerator.trackers = [*open_ones, *closed]

    def _close(self, trackers: list[Any]) -> None:
        accelerator = self.trainer.accelerator
        for each in trackers:
            if each in accelerator.trackers:
                accelerator.trackers.remove(each)
                if not getattr(each, "is_theirs", False):
                    each.finish()


def _settings(args: Any, model: Any, size: int) -> dict[str, Any]:
    """What a run is found by: the arguments, the model's config, its size."""
    config: Any = getattr(model, "config", None)
    values = config if isinstance(config, dict) else config.to_dict() if hasattr(config, "to_dict") else {}
    values = {name: each if type(each) in (bool, int, float, str) else str(each) for name, each in values.items()}
    return {**values, **args.to_sanitized_dict(), "model/num_parameters": size}


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
