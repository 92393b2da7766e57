"""Reports the training of an unchanged script, and lets the service stop this training and change its arguments.

A callback is added to every Trainer that the script makes: transformers' own, ours, and subclasses of both. It sends
logs, evaluations, progress and checkpoints as events, and obeys pause, cancel and live commands. A loop that uses
Accelerate alone reports what it passes to `accelerator.log` and `accelerator.save_state`.

`Trainer.train` continues from the job's newest checkpoint, unless the script names a checkpoint itself. Before the job
has one, the first call of `train` begins at the spec's `resume_from`.

A script may train several times, for example to fine-tune and then to align. Each call of `train` is then a stage of
one job. Its steps are counted from the end of the stage before, and it continues from its own checkpoints.
"""

from __future__ import annotations

import functools
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from accelerate import Accelerator

from footplate.contract.errors import NotBuildable
from footplate.contract.host.artifacts import STAGE, stage_of
from footplate.contract.host.launch import Order
from footplate.runtime import process_group
from footplate.runtime.emit import Emit, StoppedEvaluating, plain_values
from footplate.runtime.live_commands import FootplateRun, LiveCommands, TransformersRun
from footplate.runtime.starting_point import KeepBest, StartingPoint, link_or_copy, newest_valid
from footplate.trainer import checkpoint as checkpoints
from footplate.trainer.callbacks import TrainerCallback
from footplate.trainer.checkpoint import Checkpoint
from footplate.trainer.strategies import shared_folder
from footplate.trainer.trainer import Trainer

COPY = "checkpoint-of-the-first-rank"
"""The folder for a copy of the checkpoint, in the temporary folder of a node that cannot see the original."""
LINKED_FROM_BYTES = 2**20
"""The size from which files are linked. Smaller files are copied, because a Trainer may write to them again."""
SAVE_SECONDS = 1800.0
"""The longest that the ranks of a loop without a Trainer wait for each other after a save."""
THEIRS = "transformers.trainer"
FindStart = Callable[[], StartingPoint | None]


class ScriptStopped(BaseException):
    """The script was asked to stop and its training has ended. No `except Exception` of the script catches this."""


@dataclass(slots=True)
class Stage:
    """One call of `train` in a script. A script may train several times."""

    number: int
    """The number of calls of `train` before this one."""
    first_step: int
    """The job's steps before this stage."""
    steps: int = 0


class ScriptReports:
    """Reports the stages of one attempt of a script, and makes each stage continue from the job's checkpoints."""

    def __init__(self, order: Order, emit: Emit, find_start: FindStart | None = None) -> None:
        """Takes a function that finds the checkpoint that `resume_from` names, if the spec has `resume_from`."""
        self._order, self._emit = order, emit
        has_own = any(offer.of is None for offer in order.checkpoints)
        self._find_start = None if has_own else find_start
        self._stage: Stage | None = None
        self.is_training = False
        """True while a Trainer trains. Calls of Accelerate are then not reported a second time."""
        self._newest_of_stages: dict[int, Path] = {}
        self._sources: dict[Path, Path] = {}
        """The folder that `Accelerator.save_state` has written, by the job's copy of it."""
        self.live_commands = LiveCommands(emit.event_socket, emit.stop_fd, order.commands)

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Patches the Trainers and Accelerator of this process, also those that are imported later."""
        with ExitStack() as undo:
            self._patch(Trainer, undo)
            _patch_accelerator(self, undo)
            self._emit.reads_stops(False)
            hook = _WhenImported(lambda module: self._patch(module.Trainer, undo))
            sys.meta_path.insert(0, hook)
            undo.callback(sys.meta_path.remove, hook)
            if THEIRS in sys.modules:
                hook.on_import(sys.modules[THEIRS])
            yield

    def _patch(self, trainer_class: Any, undo: ExitStack) -> None:
        """Wraps `__init__` and `train` of the class, until `undo` puts the original ones back."""
        for name, wrap in (("__init__", self._wrap_init), ("train", self._wrap_train)):
            original = vars(trainer_class)[name]
            undo.callback(setattr, trainer_class, name, original)
            setattr(trainer_class, name, wrap(original))

    # A Trainer -------------------------------------------------------------------------------------------------------

    def _wrap_init(self, init: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(init)
        def __init__(trainer: Any, *args: Any, **kwargs: Any) -> None:
            init(trainer, *args, **kwargs)
            # This runs twice if the constructors of both a class and its base are patched.
            if _reporter_of(trainer) is None:
                trainer.add_callback(_reporter(self, trainer))

        return __init__

    def _wrap_train(self, train: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(train)
        def wrapped(trainer: Any, resume_from_checkpoint: Any = None, *args: Any, **kwargs: Any) -> Any:
            if self.is_training:
                return train(trainer, resume_from_checkpoint, *args, **kwargs)
            reporter = _reporter_of(trainer)
            if reporter is not None:
                # The reporter is always the last callback, because a later one could cancel the stop that it requests.
                trainer.remove_callback(reporter)
            trainer.add_callback(_reporter(self, trainer))
            with self._next_stage(trainer):
                start = None if isinstance(resume_from_checkpoint, str | os.PathLike) else self._start()
                output = None if start is None else self._load_if_ended(trainer, start)
                resume_from = resume_from_checkpoint if start is None else start.load(trainer, self._emit.note)
                if start is not None and not start.is_own:
                    trainer.add_callback(KeepBest(self._order.files, self._emit))
                output = output or train(trainer, resume_from, *args, **kwargs)
            self.stop_if_asked()
            return output

        return wrapped

    @contextmanager
    def _next_stage(self, trainer: Any) -> Iterator[None]:
        if isinstance(trainer, Trainer):
            self._emit.peers = trainer._footplate.strategy.peers
        else:
            self._emit.peers = process_group.peers(self._order, None, trainer.args.ddp_timeout)
        if self._stage is None:
            self._stage = Stage(0, 0)
        else:
            self._stage = Stage(self._stage.number + 1, self._stage.first_step + self._stage.steps)
        self.is_training = True
        try:
            yield
        finally:
            self.is_training = False

    def _start(self) -> StartingPoint | None:
        """Returns the newest valid checkpoint of this stage, or `resume_from` for the first stage. None means step 0.

        A node that cannot see the main rank's folder gets a copy.
        """
        peers = self._emit.peers
        start = peers.from_main(self._start_of_the_main_rank)
        if start is None or peers.world == 1:
            return start
        folder = shared_folder.fetch(peers, Path(start.folder), Path(tempfile.gettempdir(), COPY))
        return start if folder == Path(start.folder) else replace(start, folder=str(folder))

    def _start_of_the_main_rank(self) -> StartingPoint | None:
        assert self._stage is not None
        own_offers = [offer for offer in self._order.checkpoints if offer.of is None]
        root = self._order.files.root
        if offers := [offer for offer in own_offers if stage_of(root / offer.path) == self._stage.number]:
            return StartingPoint(newest_valid(offers, self._order, self._emit), is_own=True)
        start = self._find_start() if self._find_start and self._stage.number == 0 else None
        if start and not start.weights_only and not Path(start.folder, checkpoints.STATE).is_file():
            raise NotBuildable(
                f"the checkpoint in resume_from has no {checkpoints.STATE}, so no Trainer can continue from it",
                hint='load its weights only, with "mode": "weights"',
            )
        return start

    def refuse_an_unused_start(self) -> None:
        """Ends a loop without a Trainer whose spec has `resume_from`, because nothing would load the checkpoint."""
        if self._find_start is not None and self._stage is None:
            raise NotBuildable(
                "resume_from names a checkpoint, but this script called no Trainer, so nothing has loaded it",
                hint="leave resume_from out, and load the checkpoint in the script",
            )

    def _load_if_ended(self, trainer: Any, start: StartingPoint) -> Any:
        """Loads the model of a stage that had ended in an earlier attempt, and returns what `train` returns, or None.

        transformers' Trainer trains one step too many if it resumes from the last step. Footplate's does not.
        """
        if isinstance(trainer, Trainer) or start.weights_only:
            return None
        resume_from = start.folder
        library = sys.modules[THEIRS]
        state = library.TrainerState.load_from_json(str(Path(resume_from) / checkpoints.STATE))
        # A checkpoint of another job has that job's max_steps, which may be less than this script's.
        steps = state.max_steps if start.is_own else trainer.args.max_steps
        if steps <= 0 or state.global_step < steps:
            return None
        if trainer.model_init is not None:
            trainer.model = trainer.model_wrapped = trainer.call_model_init()
        trainer._load_from_checkpoint(resume_from)
        trainer.state = state
        if trainer.args.load_best_model_at_end and state.best_model_checkpoint is not None:
            trainer._load_best_model()
        self.count(state)
        self._emit.note(
            f"this stage of the script had already ended at step {state.global_step}: its model is loaded, not trained"
        )
        losses = [row["loss"] for row in state.log_history if "loss" in row]
        loss = losses[-1] if losses else 0.0
        # The metrics that `train` returns. Nothing was trained in this attempt, so it took no time.
        names = ("train_runtime", "train_samples_per_second", "train_steps_per_second")
        metrics = {
            **dict.fromkeys(names, 0.0),
            "total_flos": state.total_flos,
            "train_loss": loss,
            "epoch": state.epoch,
        }
        return library.TrainOutput(state.global_step, loss, metrics)

    def stop_if_asked(self) -> None:
        """Ends the script on all ranks if any rank has read a stop request. All ranks must call this."""
        if self._emit.agree():
            raise ScriptStopped

    def stop_after_save(self) -> None:
        """Ends a training loop without a Trainer if its job was asked to stop. Call it directly after a save.

        All ranks must call this, and all of them end together.
        """
        if self._order.world > 1 and self._emit.peers.world == 1:
            self._emit.peers = process_group.peers(self._order, None, SAVE_SECONDS)
        self._emit.asked_to_stop()
        self.stop_if_asked()

    # Checkpoints -----------------------------------------------------------------------------------------------------

    def job_state(self, state: Any) -> Any:
        """Returns a Trainer's state with the steps of all stages of the job, for events."""
        first_step = self._stage.first_step if self._stage else 0
        best_step = getattr(state, "best_global_step", None)
        return SimpleNamespace(
            global_step=first_step + state.global_step,
            epoch=state.epoch,
            max_steps=first_step + state.max_steps if state.max_steps > 0 else 0,
            best_global_step=None if best_step is None else first_step + best_step,
            log_history=[],
        )

    def count(self, state: Any) -> None:
        assert self._stage is not None
        self._stage.steps = state.global_step

    def copy_checkpoint(self, source: Path, args: Any, state: Any) -> None:
        """Copies a checkpoint that a Trainer has written to `source` into the job's folder, and reports the copy."""
        assert self._stage is not None
        peers, job_state = self._emit.peers, self.job_state(state)
        job_state.log_history = [
            {**row, "step": job_state.global_step} for row in state.log_history if row.get("step") == state.global_step
        ]
        copy = peers.from_main(lambda: self._keep(source, job_state.global_step, may_link=True))
        self._newest_of_stages[self._stage.number] = copy.path
        if peers.is_main and copy.path != source:
            spared = {*self._newest_of_stages.values(), *self._emit.relied_on()}
            checkpoints.rotate(self._order.files.folder, args.save_total_limit, copy, spared)
        # The event also reports the checkpoints that were just deleted.
        self._emit.on_save(args, job_state, None, checkpoint=copy)  # type: ignore[arg-type]

    def saved_by_accelerate(self, source: Path, step: int) -> None:
        """Copies a folder that `Accelerator.save_state` has written, because the script may write its files again."""
        copy = self._keep(source, step, may_link=False)
        self._delete_outdated_copies(source, copy.path)
        state = SimpleNamespace(global_step=step, epoch=None, max_steps=0, best_global_step=None, log_history=[])
        self._emit.on_save(SimpleNamespace(metric_for_best_model=None), state, None, checkpoint=copy)  # type: ignore[arg-type]

    def _delete_outdated_copies(self, source: Path, newest: Path) -> None:
        """Deletes copies of folders that the script has overwritten or deleted, so that as many copies stay as folders.

        A copy that the next attempt may need stays until a later save.
        """
        needed = {newest, *self._emit.relied_on()}
        for copy, folder in list(self._sources.items()):
            if copy not in needed and (folder == source.resolve() or not folder.is_dir()):
                shutil.rmtree(copy, ignore_errors=True)
                del self._sources[copy]
        if newest.resolve() != source.resolve():
            self._sources[newest] = source.resolve()

    def _keep(self, source: Path, step: int, *, may_link: bool) -> Checkpoint:
        folder, stamp = self._order.files.folder, self._order.stamp
        if source.resolve() == (folder / f"checkpoint-{step}").resolve():
            return checkpoints.seal(source.resolve(), step, stamp)
        stage = self._stage or Stage(0, 0)

        def fill(target: Path) -> None:
            _copy(source, target, may_link=may_link)
            (target / STAGE).write_text(json.dumps({"stage": stage.number, "first_step": stage.first_step}))

        return checkpoints.commit(folder, step, fill, stamp)


def _copy(source: Path, target: Path, *, may_link: bool) -> None:
    for path in sorted(source.rglob("*")):
        if not path.is_file() or path.name == checkpoints.MANIFEST:
            continue
        copy = target / path.relative_to(source)
        copy.parent.mkdir(parents=True, exist_ok=True)
        if may_link and path.stat().st_size >= LINKED_FROM_BYTES:
            link_or_copy(path, copy)
        else:
            shutil.copyfile(path, copy)


# The callback --------------------------------------------------------------------------------------------------------


class _Reports:
    """The methods of the callback that is added to a Trainer. `_reporter` adds that Trainer's own base class."""

    def __init__(self, reports: ScriptReports, trainer: Any) -> None:
        self._reports, self._trainer = reports, trainer
        self._emit, self._live_commands = reports._emit, reports.live_commands
        self._is_ours = isinstance(trainer, Trainer)

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        job_state = self._reports.job_state(state)
        run_class = FootplateRun if self._is_ours else TransformersRun
        self._live_commands.run = run_class(self._trainer, self._emit.peers)
        self._live_commands.begin_at(job_state.global_step, since=job_state.global_step - state.global_step)
        self._emit.on_train_begin(args, job_state, control)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> Any:
        job_state = self._reports.job_state(state)
        self._reports.count(state)
        self._live_commands.on_step_end(args, job_state, control)
        self._emit.on_step_end(args, job_state, control)
        if not self._is_ours:
            flags = [control.should_training_stop, control.should_save]
            control.should_training_stop, control.should_save = self._emit.peers.any(flags)
        return control

    def on_epoch_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> Any:
        # A resume of transformers' Trainer does not make up for the end of an epoch.
        if self._is_ours or state.epoch % 1:
            self._emit.on_epoch_end(args, state, control)
        return control

    def on_log(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._emit.on_log(args, self._reports.job_state(state), control, logs=kwargs["logs"])

    def on_evaluate(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._emit.on_evaluate(args, self._reports.job_state(state), control, metrics=kwargs["metrics"])

    on_predict = on_evaluate

    def on_prediction_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        try:
            self._emit.on_prediction_step(args, state, control)
        except StoppedEvaluating:
            raise ScriptStopped from None

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        checkpoint = kwargs.get("checkpoint")
        folder = Path(self._trainer._get_output_dir(trial=None)) if checkpoint is None else checkpoint.path.parent
        self._reports.copy_checkpoint(folder / f"checkpoint-{state.global_step}", args, state)

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._emit.on_train_end(args, self._reports.job_state(state), control)


def _reporter(reports: ScriptReports, trainer: Any) -> Any:
    base = TrainerCallback if isinstance(trainer, Trainer) else sys.modules[THEIRS].TrainerCallback
    return type("FootplateReports", (_Reports, base), {})(reports, trainer)


def _reporter_of(trainer: Any) -> Any:
    return next((callback for callback in trainer.callback_handler.callbacks if isinstance(callback, _Reports)), None)


# Patches -------------------------------------------------------------------------------------------------------------


def _patch_accelerator(reports: ScriptReports, undo: ExitStack) -> None:
    init, log, save_state = Accelerator.__init__, Accelerator.log, Accelerator.save_state
    emit, last_step = reports._emit, 0

    @functools.wraps(init)
    def init_and_report(accelerator: Any, *args: Any, **kwargs: Any) -> None:
        init(accelerator, *args, **kwargs)
        emit.reads_stops(True)

    @functools.wraps(log)
    def log_and_report(
        accelerator: Any, values: dict[str, Any], step: int | None = None, *args: Any, **kwargs: Any
    ) -> Any:
        nonlocal last_step
        result = log(accelerator, values, step, *args, **kwargs)
        if not reports.is_training:
            reports.refuse_an_unused_start()
            last_step = last_step if step is None else int(step)
            state = SimpleNamespace(global_step=last_step, epoch=None, max_steps=0)
            _send_logged(emit, values, state)
            emit.progress(state)  # type: ignore[arg-type]
        return result

    @functools.wraps(save_state)
    def save_and_report(accelerator: Any, *args: Any, **kwargs: Any) -> Any:
        folder = save_state(accelerator, *args, **kwargs)
        if not reports.is_training:
            reports.refuse_an_unused_start()
            accelerator.wait_for_everyone()
            if accelerator.is_main_process:
                reports.saved_by_accelerate(Path(folder), last_step)
            reports.stop_after_save()
        return folder

    for name, patched in (("__init__", init_and_report), ("log", log_and_report), ("save_state", save_and_report)):
        undo.callback(setattr, Accelerator, name, vars(Accelerator)[name])
        setattr(Accelerator, name, patched)


def _send_logged(emit: Emit, values: dict[str, Any], state: Any) -> None:
    plain = plain_values(values)
    evaluated = {name: value for name, value in plain.items() if name.startswith("eval_")}
    trained = {name: value for name, value in plain.items() if name not in evaluated}
    if trained:
        emit.on_log(None, state, None, logs=trained)  # type: ignore[arg-type]
    if evaluated:
        emit.on_evaluate(None, state, None, metrics=evaluated)  # type: ignore[arg-type]


class _WhenImported(MetaPathFinder):
    """Calls a function with the module `transformers.trainer`, as soon as the script has imported that module."""

    def __init__(self, on_import: Callable[[Any], Any]) -> None:
        self.on_import = on_import

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if fullname != THEIRS:
            return None
        spec = PathFinder.find_spec(fullname, path)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def exec_module(module: Any) -> None:
                execute(module)
                self.on_import(module)

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec
