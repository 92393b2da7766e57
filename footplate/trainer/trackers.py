"""Opens Accelerate's trackers as Hugging Face's Trainer does.

If the script has opened a run, the run is used and left open. A run that the Trainer opened continues if values are
logged after training. Environment variables have the same meaning as in transformers.
"""

from __future__ import annotations

import logging
import os
import re
import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from accelerate.tracking import (
    LOGGER_TYPE_TO_CLASS,
    GeneralTracker,
    MLflowTracker,
    TensorBoardTracker,
    TrackioTracker,
    WandBTracker,
)

from footplate.contract.arguments.argument_fields import Fields

Logs = dict[str, Any]
log = logging.getLogger("footplate.trainer")

RUN_METRICS = frozenset(
    {"train_runtime", "train_samples_per_second", "train_steps_per_second", "train_loss", "total_flos"}
)
_WITH_PROJECTS = ("clearml", "comet_ml", "swanlab")
_TRUE = ("1", "ON", "YES", "TRUE")


@dataclass(frozen=True, slots=True)
class RunInfo:
    """The name, folder, model and arguments of a run, from which a tracker opens it."""

    args: Any
    model: Any
    run: str
    """The run's name: the trial's name, `run_name`, or the last component of `output_dir`."""
    trial: str | None
    folder: Path
    """The folder for trackers that write files."""
    log_every: int
    first_step: int = 0
    """The step at which this run starts: more than 0 if it is resumed."""


def tracker(name: str, run_info: RunInfo) -> GeneralTracker:
    classes: dict[str, Any] = {"wandb": Wandb, "mlflow": MLflow, "trackio": Trackio, "tensorboard": TensorBoard}
    if name in classes:
        own_tracker: GeneralTracker = classes[name](run_info)
        return own_tracker
    kind: Any = LOGGER_TYPE_TO_CLASS[name]
    run_name = run_info.args.project if name in _WITH_PROJECTS else run_info.run
    # Accelerate appends the name to the folder, so a name with slashes could lead outside of it.
    return kind(as_file_name(run_name), str(run_info.folder)) if kind.requires_logging_directory else kind(run_name)


def as_file_name(name: str) -> str:
    """Returns the name as one component of a path, with characters such as slashes replaced."""
    return re.sub(r"[^\w.-]+", "_", name).strip(".") or "run"


def log_to(tracker: GeneralTracker, logs: Logs, step: int) -> None:
    if isinstance(tracker, (Wandb, MLflow)):
        tracker.log_values(logs, step)
    else:
        tracker.log(in_sections(logs), step=step)


def wandb_keeps() -> str:
    """Returns which models W&B stores: `checkpoint` for all and the last, `end` for the last, or another word."""
    return os.environ.get("WANDB_LOG_MODEL", "false").lower()


def in_sections(logs: Logs) -> Logs:
    """Turns `eval_loss` into `eval/loss`. Names without the prefix eval or test belong to training."""
    prefixed = {name: re.sub("^(eval|test)_", r"\1/", name) for name in logs}
    return {prefixed[name] if prefixed[name] != name else f"train/{name}": value for name, value in logs.items()}


class TensorBoard(TensorBoardTracker):  # type: ignore[misc]
    """A TensorBoard run. A resumed run in the same folder continues the curves of the run before it.

    Values after the checkpoint will be logged again, so TensorBoard drops the earlier ones.
    """

    def __init__(self, run_info: RunInfo) -> None:
        super().__init__(as_file_name(run_info.run), str(run_info.folder))
        self.resumes_at = run_info.first_step

    def start(self) -> None:
        self.init_kwargs = {"purge_step": self.resumes_at + 1} if self.resumes_at else {}
        super().start()
        self._has_configuration = bool(self.resumes_at)
        self.resumes_at = 0  # A tracker that is opened again later must not drop the values of this run.

    def store_init_configuration(self, values: dict[str, Any]) -> None:
        """Writes the configuration once per run, because each call makes a new folder beside the curves."""
        if not self._has_configuration:
            super().store_init_configuration(values)


class Wandb(WandBTracker):  # type: ignore[misc]
    """A W&B run. WANDB_PROJECT, WANDB_NAME, WANDB_WATCH, WANDB_LOG_MODEL and W&B's own variables are applied.

    The run stays open after training, so that a script may log to it. W&B closes it at exit.
    """

    stays_open = True
    _ours: ClassVar[set[str]] = set()
    """The ids of runs that Trainers have opened in this process."""

    def __init__(self, run_info: RunInfo) -> None:
        super().__init__(os.environ.get("WANDB_PROJECT") or run_info.args.project)
        self.run_info, self.is_scripts_own = run_info, False
        self._keeps = wandb_keeps()

    def start(self) -> None:
        import wandb

        open_run: Any = wandb.run
        if open_run is not None and open_run.id not in self._ours:
            self.run, self.is_scripts_own = open_run, True
        else:
            if open_run is not None:
                open_run.finish()  # opened by an earlier Trainer, so its values must not be mixed with ours
            self.run = wandb.init(project=self.run_name, **self._called())
            self._ours.add(self.run.id)
        # Values are plotted by the training step. W&B's own step count drops values after a log without a step.
        self.run.define_metric("train/global_step")
        self.run.define_metric("*", step_metric="train/global_step", step_sync=True)
        watched = os.environ.get("WANDB_WATCH", "false")
        if watched in ("all", "parameters", "gradients"):
            self.run.watch(self.run_info.model, log=watched, log_freq=max(100, self.run_info.log_every))

    def _called(self) -> dict[str, Any]:
        run_info = self.run_info
        if getattr(self, "run", None) is not None:
            return {"id": self.run.id, "name": self.run.name, "resume": "allow"}
        if run_info.trial is not None:
            return {"name": run_info.trial, "group": run_info.args.run_name or run_info.args.output_dir}
        return {} if run_info.args.run_name is None and "WANDB_NAME" in os.environ else {"name": run_info.run}

    def store_init_configuration(self, values: dict[str, Any]) -> None:
        self.run.config.update(values, allow_val_change=True)

    def log_values(self, logs: Logs, step: int) -> None:
        if RUN_METRICS & logs.keys():
            self.run.summary.update({name: value for name, value in logs.items() if name in RUN_METRICS})
            logs = {name: value for name, value in logs.items() if name not in RUN_METRICS}
        self.log({**in_sections(logs), "train/global_step": step})

    def keep(self, checkpoint: Path, epoch: float, step: int) -> None:
        if self._keeps == "checkpoint":
            self._store(checkpoint, [f"epoch_{round(epoch, 2)}", f"checkpoint_global_step_{step}"])

    def keep_last(self, folder: Path) -> None:
        self._store(folder, ["final_model"])

    def _store(self, folder: Path, aliases: list[str]) -> None:
        import wandb

        run_name = self.run_info.args.run_name
        artifact = wandb.Artifact(f"model-{self.run.id if run_name is None else self.run.name}", type="model")
        artifact.add_dir(str(folder))
        self.run.log_artifact(artifact, aliases=aliases)


class MLflow(MLflowTracker):  # type: ignore[misc]
    """An MLflow run. Accelerate reads MLFLOW_RUN_ID, MLFLOW_TAGS and MLFLOW_NESTED_RUN.

    HF_MLFLOW_LOG_ARTIFACTS stores every checkpoint. Names are logged unchanged (`eval_loss`), as Hugging Face does.
    The experiment is MLFLOW_EXPERIMENT_NAME, or the one that the script has set, or else `project` if given.
    """

    def __init__(self, run_info: RunInfo) -> None:
        super().__init__(run_name=run_info.run)
        self.run_info, self.is_scripts_own = run_info, False
        self._keeps = os.environ.get("HF_MLFLOW_LOG_ARTIFACTS", "").upper() in _TRUE

    def start(self) -> None:
        import mlflow

        open_run: Any = mlflow.active_run()
        if open_run is not None and not self.nested_run:
            self.active_run, self.is_scripts_own = open_run, True
            return
        active_run = getattr(self, "active_run", None)
        self.active_run = mlflow.start_run(
            run_id=self.run_id if active_run is None else active_run.info.run_id,
            experiment_id=self._project(),
            run_name=self.run_name,
            nested=bool(self.nested_run),
            tags=self.tags,
        )

    def _project(self) -> str | None:
        """Returns the experiment for `project`, or None if the environment or the script has chosen one."""
        import mlflow
        from mlflow.tracking import fluent

        variables = {"MLFLOW_EXPERIMENT_NAME", "MLFLOW_EXPERIMENT_ID"} & os.environ.keys()
        project = str(self.run_info.args.project)
        if variables or fluent._active_experiment_id is not None or project == Fields.project:
            return None
        experiment = mlflow.get_experiment_by_name(project)
        return str(mlflow.create_experiment(project) if experiment is None else experiment.experiment_id)

    def log_values(self, logs: Logs, step: int) -> None:
        """Sends the values in another thread, so that training does not wait for a server."""
        self.log({re.sub(r"[^\w\-. :/]", "_", name): value for name, value in logs.items()}, step, synchronous=False)

    def keep(self, checkpoint: Path, epoch: float, step: int) -> None:
        if self._keeps:
            self.log_artifacts(str(checkpoint), artifact_path=checkpoint.name)


class Trackio(TrackioTracker):  # type: ignore[misc]
    """A Trackio run, in a local folder or in the Space `trackio_space_id`. `finish` makes a static copy of it."""

    def __init__(self, run_info: RunInfo) -> None:
        args = run_info.args
        super().__init__(
            args.project,
            name=run_info.run,
            # A user's run name continues a run of that name. A generated name might be that of another run.
            resume="never" if args.run_name is None else "allow",
            space_id=args.trackio_space_id,
            bucket_id=args.trackio_bucket_id,
            private=args.hub_private_repo,
        )
        self.run_info = run_info
        self._static_space = args.trackio_static_space_id or _name_of_a_space(args.project)

    def start(self) -> None:
        super().start()
        self.init_kwargs["resume"] = "allow"

    def finish(self) -> None:
        super().finish()
        if self.space is not None:
            self._make_static("freeze", space_id=self.space, new_space_id=self._static_space)

    def publish(self) -> None:
        """Uploads the logged values as a static page, when the model is uploaded to the hub."""
        if self.space is None:
            bucket = self.run_info.args.trackio_bucket_id
            self._make_static("sync", space_id=self._static_space, sdk="static", bucket_id=bucket, force=True)

    @property
    def space(self) -> str | None:
        """The Space that receives live values. TRACKIO_SPACE_ID may have set it."""
        from trackio import context_vars

        space_id: str | None = context_vars.current_space_id.get()
        return space_id

    def _make_static(self, how: str, **where: Any) -> None:
        import trackio

        args = self.run_info.args
        if args.trackio_static_space_id is False:
            return
        try:
            new_space = getattr(trackio, how)(project=args.project, private=args.hub_private_repo, **where)
        except Exception as error:
            log.warning("trackio could not make a static copy of %s: %s", args.project, error)
        else:
            self._static_space = new_space or self._static_space


def _name_of_a_space(project: str) -> str:
    plain = re.sub(r"-+", "-", re.sub(r"[^a-z0-9._-]", "-", project.lower())).strip("-_.")
    return f"{plain[:81] or 'trackio-project'}-static-{secrets.token_hex(3)}"
