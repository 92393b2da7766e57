"""Sends logs to TensorBoard, W&B, MLflow and the other trackers that Accelerate supports."""

from __future__ import annotations

import os
import socket
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from footplate.contract.arguments.libraries import TRACKERS
from footplate.contract.errors import did_you_mean
from footplate.trainer.callbacks import TrainerCallback
from footplate.trainer.state import TrainerControl, TrainerState

if TYPE_CHECKING:
    from footplate.trainer.trainer import Trainer

OF_TRANSFORMERS = ("azure_ml", "codecarbon", "dagshub", "flyte", "kubeflow", "neptune")
"""Reporters for which transformers has a callback, but Accelerate has no tracker."""


def reporters(trainer: Trainer) -> list[TrainerCallback]:
    """Returns the callbacks that send logs to the trackers in `report_to`. An unknown tracker raises an error.

    The callback of a name in `OF_TRANSFORMERS` is transformers' own.
    """
    names = [trainer.args.report_to] if isinstance(trainer.args.report_to, str) else list(trainer.args.report_to or [])
    callbacks = [_of_transformers(name) for name in names if name in OF_TRANSFORMERS]
    # Finding the installed trackers takes milliseconds.
    if names := [name for name in names if name not in OF_TRANSFORMERS]:
        callbacks.append(ReportCallback(trainer, chosen(names)))
    return callbacks


def _of_transformers(name: str) -> Any:
    """Returns the callback of a reporter. If its package is not installed, the callback's error names the package."""
    try:
        from transformers.integrations.integration_utils import INTEGRATION_TO_CALLBACK
    except ImportError as error:
        raise ImportError(
            f"report_to names {name}, whose callback is in transformers: pip install 'footplate[hf]'"
        ) from error
    return INTEGRATION_TO_CALLBACK[name]()


def chosen(names: list[str]) -> list[str]:
    from accelerate.tracking import get_available_trackers

    installed = {str(tracker.value) for tracker in get_available_trackers()}
    if names == ["all"]:
        return sorted(installed)
    for name in names:
        if name not in TRACKERS:
            known_names = (*TRACKERS, *OF_TRANSFORMERS)
            hint = did_you_mean(name, known_names) or f"known are {', '.join(known_names)}, all and none"
            raise ValueError(f"report_to names {name!r}, which is not a tracker: {hint}")
        if name not in installed:
            how = f"pip install {TRACKERS[name].install}"
            raise ImportError(f"report_to names {name}, which is not installed here: {how}")
    return list(names)


class ReportCallback(TrainerCallback):
    """Opens trackers when training starts or values are logged, and closes them at the end, also after an error."""

    def __init__(self, trainer: Trainer, names: list[str]) -> None:
        self.trainer, self.names = trainer, names
        self.trackers: list[Any] = []
        """The trackers of the current run. A closed tracker is opened again if values are logged later."""

    def on_train_begin(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        if state.is_hyper_param_search:
            self._close(self.trackers)
            self.trackers = []  # every trial is a separate run
        self._open(args, state)

    def on_log(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        self._log_values(args, state, kwargs["logs"])

    def on_predict(self, args: Any, state: TrainerState, control: TrainerControl, metrics: Any, **kwargs: Any) -> None:
        self._log_values(args, state, metrics)

    def on_save(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        folder = kwargs["checkpoint"].path if kwargs.get("checkpoint") is not None else None
        for tracker in self.trackers if folder is not None else ():
            if hasattr(tracker, "keep"):
                tracker.keep(folder, state.epoch or 0.0, state.global_step)

    def on_push_begin(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        for tracker in self.trackers:
            if hasattr(tracker, "publish"):
                tracker.publish()

    def on_train_end(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        failed = sys.exc_info()[0] is not None
        if not failed:
            self._keep_last_model()
        self._close([tracker for tracker in self.trackers if failed or not getattr(tracker, "stays_open", False)])

    def _keep_last_model(self) -> None:
        """Saves the model, which needs every process, and stores it in the tracker from the main process."""
        from footplate.trainer.trackers import Wandb, wandb_keeps

        if "wandb" in self.names and wandb_keeps() in ("checkpoint", "end"):
            with TemporaryDirectory() as folder:
                self.trainer.save_model(folder, _internal_call=True)
                for open_tracker in self.trackers:
                    if isinstance(open_tracker, Wandb):
                        open_tracker.keep_last(Path(folder))

    def _log_values(self, args: Any, state: TrainerState, logs: dict[str, Any]) -> None:
        from footplate.trainer.trackers import log_to

        self._open(args, state)
        values = {name: value for name, value in logs.items() if isinstance(value, (int, float, str))}
        for open_tracker in self.trackers:
            log_to(open_tracker, values, state.global_step)

    def _open(self, args: Any, state: TrainerState) -> None:
        """Opens the trackers that are not open. A new run's arguments are sent to them."""
        if not state.is_world_process_zero:
            return
        from footplate.trainer.trackers import RunInfo, tracker

        accelerator, settings = self.trainer.accelerator, None
        if not self.trackers:
            name = str(state.trial_name or args.run_name or Path(args.output_dir).name)
            model, strategy = self.trainer.model, self.trainer._footplate.strategy
            size = sum(strategy.elements(parameter) for parameter in model.parameters())
            folder, log_every = logging_dir(args), int(state.logging_steps)
            run_info = RunInfo(args, model, name, state.trial_name, folder, log_every, state.global_step)
            self.trackers, settings = [tracker(name, run_info) for name in self.names], _settings(args, model, size)
        open_ones = accelerator.trackers
        for closed in [candidate for candidate in self.trackers if candidate not in open_ones]:
            # `init_trackers` starts every tracker in `accelerator.trackers`. One that did not start cannot be closed.
            accelerator.trackers, accelerator.log_with = [], [closed]
            try:
                accelerator.init_trackers("", settings)
                open_ones.append(closed)
            finally:
                accelerator.trackers = open_ones

    def _close(self, trackers: list[Any]) -> None:
        accelerator = self.trainer.accelerator
        for tracker in trackers:
            if tracker in accelerator.trackers:
                accelerator.trackers.remove(tracker)
                if not getattr(tracker, "is_scripts_own", False):
                    tracker.finish()


def _settings(args: Any, model: Any, size: int) -> dict[str, Any]:
    """Returns the settings that describe a run: the arguments, the model's config and its size."""
    config: Any = getattr(model, "config", None)
    values = config if isinstance(config, dict) else config.to_dict() if hasattr(config, "to_dict") else {}
    values = {name: value if type(value) in (bool, int, float, str) else str(value) for name, value in values.items()}
    return {**values, **args.to_sanitized_dict(), "model/num_parameters": size}


def logging_dir(args: Any) -> Path:
    """Returns `logging_dir`, TENSORBOARD_LOGGING_DIR, or a folder in output_dir named by the time and the host."""
    folder = args.logging_dir or os.environ.get("TENSORBOARD_LOGGING_DIR")
    if folder:
        return Path(folder).expanduser()
    return Path(args.output_dir) / "runs" / f"{time.strftime('%b%d_%H-%M-%S')}_{socket.gethostname()}"
