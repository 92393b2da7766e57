"""Accelerate's trackers, opened as the reference's users expect of each.

A run that a script has opened itself is used, and left open to it. A run of ours goes on where it was, when something
is logged after training has closed it. The environment variables that the reference reads say what they said there.
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

Logs = dict[str, Any]
log = logging.getLogger("footplate.trainer")

OF_THE_WHOLE_RUN = frozenset(
    {"train_runtime", "train_samples_per_second", "train_steps_per_second", "train_loss", "total_flos"}
)
_WITH_PROJECTS = ("clearml", "comet_ml", "swanlab")
_TRUE = ("1", "ON", "YES", "TRUE")


@dataclass(frozen=True, slots=True)
class About:
    """What a tracker may want to know of a run before it opens one."""

    args: Any
    model: Any
    run: str
    """What to call it: the trial, `run_name`, or the last part of `output_dir`."""
    trial: str | None
    folder: Path
    """For those that write files."""
    log_every: int
    first_step: int = 0
    """Where this run goes on; more than 0 where it is resumed."""


def tracker(name: str, about: About) -> GeneralTracker:
    own: dict[str, Any] = {"wandb": Wandb, "mlflow": MLflow, "trackio": Trackio, "tensorboard": TensorBoard}
    if name in own:
        made: GeneralTracker = own[name](about)
        return made
    kind: Any = LOGGER_TYPE_TO_CLASS[name]
    called = about.args.project if name in _WITH_PROJECTS else about.run
    # Accelerate joins the name to the folder: a name with slashes would lead out of it.
    return kind(one_part(called), str(about.folder)) if kind.requires_logging_directory else kind(called)


def one_part(name: str) -> str:
    """Returns the name as that of one file or folder."""
    return re.sub(r"[^\w.-]+", "_", name).strip(".") or "run"


def tell(to: GeneralTracker, logs: Logs, step: int) -> None:
    if isinstance(to, (Wandb, MLflow)):
        to.tell(logs, step)
    else:
        to.log(in_sections(logs), step=step)


def keeps_the_last_model(names: list[str]) -> bool:
    return "wandb" in names and _wandb_keeps() in ("checkpoint", "end")


def _wandb_keeps() -> str:
    return os.environ.get("WANDB_LOG_MODEL", "false").lower()


def in_sections(logs: Logs) -> Logs:
    """`eval_loss` becomes `eval/loss`, and what is neither of an evaluation nor of a test is of training."""
    return {_in_its_section(name): value for name, value in logs.items()}


def _in_its_section(name: str) -> str:
    for prefix in ("eval", "test"):
        if name.startswith(f"{prefix}_"):
            return f"{prefix}/{name.removeprefix(f'{prefix}_')}"
    return f"train/{name}"


class TensorBoard(TensorBoardTracker):  # type: ignore[misc]
    """A run that is resumed in the folder of the one before goes on in its curves: what was told of steps after the
    checkpoint, and will be told again, is passed over."""

    def __init__(self, about: About) -> None:
        super().__init__(one_part(about.run), str(about.folder))
        self.resumes_at = about.first_step

    def start(self) -> None:
        self.init_kwargs = {"purge_step": self.resumes_at + 1} if self.resumes_at else {}
        super().start()
        self._is_told = bool(self.resumes_at)
        self.resumes_at = 0  # closed, and opened again for a prediction, it has nothing to pass over

    def store_init_configuration(self, values: dict[str, Any]) -> None:
        """A folder beside the curves, so once a run."""
        if not self._is_told:
            super().store_init_configuration(values)


class Wandb(WandBTracker):  # type: ignore[misc]
    """WANDB_PROJECT, WANDB_NAME, WANDB_WATCH and WANDB_LOG_MODEL are obeyed, and whatever W&B itself reads.

    It stays open after training, so that a script may log to it; W&B closes it at exit.
    """

    stays_open = True
    _ours: ClassVar[set[str]] = set()
    """The runs that Trainers have opened in this process."""

    def __init__(self, about: About) -> None:
        super().__init__(os.environ.get("WANDB_PROJECT") or about.args.project)
        self.about, self.is_theirs = about, False
        self._keeps = _wandb_keeps()

    def start(self) -> None:
        import wandb

        found: Any = wandb.run
        if found is not None and found.id not in self._ours:
            self.run, self.is_theirs = found, True
        else:
            if found is not None:
                found.finish()  # of a Trainer before this one: its numbers are not ours
            self.run = wandb.init(project=self.run_name, **self._called())
            self._ours.add(self.run.id)
        # By the training's own step. W&B's own count drops what comes after somebody has logged without a step.
        self.run.define_metric("train/global_step")
        self.run.define_metric("*", step_metric="train/global_step", step_sync=True)
        watched = os.environ.get("WANDB_WATCH", "false")
        if watched in ("all", "parameters", "gradients"):
            self.run.watch(self.about.model, log=watched, log_freq=max(100, self.about.log_every))

    def _called(self) -> dict[str, Any]:
        about = self.about
        if getattr(self, "run", None) is not None:
            return {"id": self.run.id, "name": self.run.name, "resume": "allow"}
        if about.trial is not None:
            return {"name": about.trial, "group": about.args.run_name or about.args.output_dir}
        return {} if about.args.run_name is None and "WANDB_NAME" in os.environ else {"name": about.run}

    def store_init_configuration(self, values: dict[str, Any]) -> None:
        self.run.config.update(values, allow_val_change=True)

    def tell(self, logs: Logs, step: int) -> None:
        if OF_THE_WHOLE_RUN & logs.keys():
            self.run.summary.update({name: value for name, value in logs.items() if name in OF_THE_WHOLE_RUN})
            logs = {name: value for name, value in logs.items() if name not in OF_THE_WHOLE_RUN}
        self.log({**in_sections(logs), "train/global_step": step})

    def keep(self, checkpoint: Path, epoch: float, step: int) -> None:
        if self._keeps == "checkpoint":
            self._store(checkpoint, [f"epoch_{round(epoch, 2)}", f"checkpoint_global_step_{step}"])

    def keep_last(self, folder: Path) -> None:
        self._store(folder, ["final_model"])

    def _store(self, folder: Path, aliases: list[str]) -> None:
        import wandb

        named = self.about.args.run_name
        artifact = wandb.Artifact(f"model-{self.run.id if named is None else self.run.name}", type="model")
        artifact.add_dir(str(folder))
        self.run.log_artifact(artifact, aliases=aliases)


class MLflow(MLflowTracker):  # type: ignore[misc]
    """Accelerate reads MLFLOW_RUN_ID, _TAGS and _NESTED_RUN; HF_MLFLOW_LOG_ARTIFACTS stores every checkpoint too.

    Names stay as they are logged (`eval_loss`), as the reference has them here. The experiment is that of
    MLFLOW_EXPERIMENT_NAME, else the one that the script has set, else `project`, where that was given.
    """

    def __init__(self, about: About) -> None:
        super().__init__(run_name=about.run)
        self.about, self.is_theirs = about, False
        self._keeps = os.environ.get("HF_MLFLOW_LOG_ARTIFACTS", "").upper() in _TRUE

    def start(self) -> None:
        import mlflow

        active: Any = mlflow.active_run()
        if active is not None and not self.nested_run:
            self.active_run, self.is_theirs = active, True
            return
        again = getattr(self, "active_run", None)
        self.active_run = mlflow.start_run(
            run_id=self.run_id if again is None else again.info.run_id,
            experiment_id=self._project(),
            run_name=self.run_name,
            nested=bool(self.nested_run),
            tags=self.tags,
        )

    def _project(self) -> str | None:
        """As an experiment. MLflow finds by itself the one that the environment or the script has chosen."""
        import mlflow
        from mlflow.tracking import fluent

        named = {"MLFLOW_EXPERIMENT_NAME", "MLFLOW_EXPERIMENT_ID"} & os.environ.keys()
        project = str(self.about.args.project)
        if named or fluent._active_experiment_id is not None or project == type(self.about.args).project:
            return None
        known = mlflow.get_experiment_by_name(project)
        return str(mlflow.create_experiment(project) if known is None else known.experiment_id)

    def tell(self, logs: Logs, step: int) -> None:
        """Another thread sends it: training does not wait for a server."""
        self.log({re.sub(r"[^\w\-. :/]", "_", name): value for name, value in logs.items()}, step, synchronous=False)

    def keep(self, checkpoint: Path, epoch: float, step: int) -> None:
        if self._keeps:
            self.log_artifacts(str(checkpoint), artifact_path=checkpoint.name)


class Trackio(TrackioTracker):  # type: ignore[misc]
    """Into a local folder, or to the Space of `trackio_space_id`, of which a static copy is made when training ends."""

    def __init__(self, about: About) -> None:
        args = about.args
        super().__init__(
            args.project,
            name=about.run,
            # Who names a run means the same one again; a name that we made up may be that of another.
            resume="never" if args.run_name is None else "allow",
            space_id=args.trackio_space_id,
            bucket_id=args.trackio_bucket_id,
            private=args.hub_private_repo,
        )
        self.about = about
        self._static_space = args.trackio_static_space_id or _name_of_a_space(args.project)

    def start(self) -> None:
        super().start()
        self.init_kwargs["resume"] = "allow"

    def finish(self) -> None:
        super().finish()
        if self.space is not None:
            self._make_static("freeze", space_id=self.space, new_space_id=self._static_space)

    def publish(self) -> None:
        """Beside a model that goes to the hub: what was logged here goes there too, as a page that does not change."""
        if self.space is None:
            bucket = self.about.args.trackio_bucket_id
            self._make_static("sync", space_id=self._static_space, sdk="static", bucket_id=bucket, force=True)

    @property
    def space(self) -> str | None:
        """Where it logs to live: TRACKIO_SPACE_ID may have said it too."""
        from trackio import context_vars

        found: str | None = context_vars.current_space_id.get()
        return found

    def _make_static(self, how: str, **where: Any) -> None:
        import trackio

        args = self.about.args
        if args.trackio_static_space_id is False:
            return
        try:
            made = getattr(trackio, how)(project=args.project, private=args.hub_private_repo, **where)
        except Exception as error:
            log.warning("trackio could not make a static copy of %s: %s", args.project, error)
        else:
            self._static_space = made or self._static_space


def _name_of_a_space(project: str) -> str:
    plain = re.sub(r"-+", "-", re.sub(r"[^a-z0-9._-]", "-", project.lower())).strip("-_.")
    return f"{plain[:81] or 'trackio-project'}-static-{secrets.token_hex(3)}"
