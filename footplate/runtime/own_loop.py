"""Runs a user's own loop, which is a function of the bundle that gets a Job, or an unchanged script.

A function `main(job, **args)` uses job.accelerator, job.parts and job.latest(). It calls job.log, job.eval and
job.checkpoint. If job.should_stop is true, it saves and returns.

A script runs as `__main__` with its argv. Its folder has the bundle's files, and a copy of what the previous attempt
left. script_reports.py connects its Trainers with the server.

With several processes, each runs the same code in the environment that a launcher sets. Only the first rank reports.
"""

from __future__ import annotations

import json
import os
import runpy
import shutil
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from accelerate import Accelerator, DataLoaderConfiguration
from accelerate.utils import DistributedDataParallelKwargs

from footplate.contract.arguments import TrainingArguments
from footplate.contract.errors import OwnCodeError, listing
from footplate.contract.events import DoneData, json_safe
from footplate.contract.host.artifacts import is_checkpoint_copy
from footplate.contract.host.bundle_files import unpack
from footplate.contract.host.file_roots import resolved
from footplate.contract.host.launch import Order
from footplate.contract.layout import attempt_folder, bundle_file
from footplate.contract.spec import JobSpec
from footplate.contract.spec_parts import Script
from footplate.drop_in import install_if_asked, refusing_a_second_model
from footplate.runtime import own_code, process_group, working_folder
from footplate.runtime.build import Parts, build
from footplate.runtime.emit import Emit, plain_values
from footplate.runtime.script_reports import FindStart, ScriptReports, ScriptStopped
from footplate.runtime.starting_point import find_starting_point
from footplate.runtime.unprepared import require_prepared
from footplate.trainer import checkpoint as files
from footplate.trainer.checkpoint import CannotSave, Checkpoint
from footplate.trainer.precision import fp8_handlers, precision_of
from footplate.trainer.state import TrainerControl, TrainerState
from footplate.trainer.strategies import shared_folder
from footplate.trainer.strategies.peers import OneProcess

BROUGHT = ".brought"
"""The folder in an attempt's folder for a copy of the checkpoint, on nodes that cannot see the original."""
BEGUN = ".begun"
"""The mark of a script's complete working folder. It is written after the earlier attempt's files were copied."""

MOST_NAMES = 20


@dataclass(frozen=True, slots=True)
class LoopCheckpoint:
    """A checkpoint of the job, after every byte was verified. `os.fspath` returns its folder."""

    path: Path
    step: int

    def __fspath__(self) -> str:
        return str(self.path)


class Job:
    """The argument of an own loop: the accelerator, the spec's parts, the folder, and functions that report."""

    def __init__(self, spec: JobSpec, order: Order, emit: Emit, find: FindStart) -> None:
        self.args: TrainingArguments = spec.training
        """The spec's `training`, with every default."""
        self.folder = order.files.folder
        """The attempt's own folder. It is the working directory, and the only place to write to."""
        self._spec, self._order, self._emit, self._find = spec, order, emit, find
        self._state, self._control = TrainerState(max_steps=max(0, spec.training.max_steps)), TrainerControl()
        self._latest: LoopCheckpoint | None = None
        self._has_looked = False
        emit.on_train_begin(self.args, self._state, self._control)

    @cached_property
    def accelerator(self) -> Accelerator:
        """An Accelerator with the precision, accumulation and `ddp_*` of `training`, on the granted devices.

        A `ddp_*` argument that is left out has Accelerate's default.
        """
        precision = precision_of(self.args)
        handlers, options = fp8_handlers(precision), {}
        if self._peers.world > 1:
            seed = self.args.seed if self.args.data_seed is None else self.args.data_seed
            names = ("find_unused_parameters", "bucket_cap_mb", "broadcast_buffers", "static_graph")
            ddp = {name: value for name in names if (value := getattr(self.args, f"ddp_{name}")) is not None}
            handlers.append(DistributedDataParallelKwargs(**ddp))
            # This sampler is seeded with the epoch, because checkpoints do not contain the state of a generator.
            options = {"dataloader_config": DataLoaderConfiguration(use_seedable_sampler=True, data_seed=seed)}
        accelerator = Accelerator(
            cpu=not self._order.gpus,
            mixed_precision=precision,
            gradient_accumulation_steps=self.args.gradient_accumulation_steps,
            kwargs_handlers=handlers,
            **options,
        )
        if self._peers.world > 1:
            require_prepared(accelerator)
        return accelerator

    @cached_property
    def parts(self) -> Parts:
        """The objects that the spec names: model, train, eval, collator, …. None for each that it does not name."""
        return build(self._spec, self._order.roots)

    @property
    def step(self) -> int:
        """The last step that was reported."""
        return self._state.global_step

    @property
    def should_stop(self) -> bool:
        """True if the job is being paused, cancelled or drained. The loop should then save and return.

        With several processes, all of them must read this at the same step, and all get the same value.
        """
        self._emit.peers = self._peers
        self._emit.asked_to_stop()
        return self._emit.agree()

    def latest(self) -> LoopCheckpoint | None:
        """Returns the newest valid checkpoint of this attempt or an earlier one. None: start at step 0.

        A node that cannot see the first rank's folder gets a copy.
        """
        if not self._has_looked:
            self._has_looked = True
            if (start := self._peers.from_main(self._find)) is not None:
                folder = Path(start.folder)
                self._latest = LoopCheckpoint(folder, int(folder.name.rpartition("-")[2]))
                self._state.global_step = self._latest.step
                self._emit.on_train_begin(self.args, self._state, self._control)
        if self._latest is not None:
            folder = shared_folder.fetch(self._peers, self._latest.path, self.folder / BROUGHT)
            self._latest = LoopCheckpoint(folder, self._latest.step)
        return self._latest

    def log(self, values: Mapping[str, Any], *, step: int, epoch: float | None = None) -> None:
        """Reports metrics of training as a log, and reports the step as progress."""
        self._is_at(step, epoch)
        self._emit.on_log(self.args, self._state, self._control, logs=plain_values(values))
        self._emit.progress(self._state)

    def eval(self, values: Mapping[str, Any], *, step: int, epoch: float | None = None) -> None:
        """Reports metrics of an evaluation. Names get the prefix `eval_` if they lack it."""
        self._is_at(step, epoch)
        metrics = {
            name if name.startswith("eval_") else f"eval_{name}": value for name, value in plain_values(values).items()
        }
        self._state.log_history.append({**metrics, "step": step})
        self._emit.on_evaluate(self.args, self._state, self._control, metrics=metrics)

    def checkpoint(self, *, step: int, write: Callable[[Path], None] | None = None) -> LoopCheckpoint:
        """Commits `checkpoint-<step>` completely or not at all. `write(folder)` writes its files.

        Without `write`, the accelerator saves all that it has prepared, for `accelerator.load_state(job.latest())`.
        With several processes, all must call this. Only the first rank commits and calls `write`.
        """
        self._is_at(step, None)

        def commit(fill: Callable[[Path], None]) -> Checkpoint:
            return files.commit(self.folder, step, fill, self._order.stamp)

        def save_prepared(folder: Path) -> None:
            self.accelerator.save_state(str(folder), safe_serialization=True)

        if write is None:
            checkpoint = shared_folder.fill_and_commit(self._peers, commit, save_prepared, self.folder)
        else:
            checkpoint = self._peers.from_main(lambda: commit(write))
        self._emit.on_save(self.args, self._state, self._control, checkpoint=checkpoint)
        if self._peers.is_main:
            files.rotate(self.folder, self.args.save_total_limit, checkpoint, self._emit.relied_on())
        self._latest, self._has_looked = LoopCheckpoint(checkpoint.path, step), True
        return self._latest

    def save(self, path: str | Path) -> None:
        """Copies a file or a folder into the job's outputs, under its own name. Any rank may call this."""
        source, target = Path(path), self._order.files.outputs / Path(path).name
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, target, dirs_exist_ok=True, copy_function=_copied)
        else:
            _copied(source, target)

    def note(self, message: str) -> None:
        """Adds a sentence to the job's history."""
        self._emit.users_note(str(message))

    def _is_at(self, step: int, epoch: float | None) -> None:
        self._state.global_step = int(step)
        if epoch is not None:
            self._state.epoch = float(epoch)

    @cached_property
    def _peers(self) -> OneProcess:
        return process_group.peers(self._order, self.args.ddp_backend, self.args.ddp_timeout)


def run(spec: JobSpec, order: Order, emit: Emit, end_program: Callable[[], None]) -> DoneData:
    """Runs a user's function or script to its end, or until the job is stopped. Returns the outcome.

    `end_program` is called after the function or script, and before its outputs are collected.
    """
    returned: Any = None
    find = partial(find_starting_point, spec, order, emit)
    try:
        if isinstance(spec.loop, Script):
            _run_script(spec, spec.loop, order, emit, find)
        else:
            assert spec.loop is not None
            # Missing files are reported before the user's module is imported.
            job, args = Job(spec, order, emit, find), resolved(spec.loop.args, order.roots)
            install_if_asked()
            with refusing_a_second_model():
                returned = own_code.OwnComponent("loops", spec.loop.use).load()(job, **args)
    except SystemExit as error:
        # sys.exit(0) is treated as a return. After SIGTERM, every exit code is treated as a stop.
        if error.code not in (None, 0) and not emit.was_terminated:
            end_program()
            raise
    end_program()
    emit.last_progress()
    result = {"steps": emit.reported_step, "final": json_safe(emit.latest), "best": None}
    if isinstance(returned, Mapping):
        result["returned"] = json_safe(dict(returned))
    if emit.obeyed is not None or emit.was_terminated:
        return emit.stopped_outcome(result)
    return _finished(spec, order, emit, result)


def _run_script(spec: JobSpec, loop: Script, order: Order, emit: Emit, find: FindStart) -> None:
    process_group.run_on_first_rank(order, lambda: _continue_in_a_copy(order))
    assert spec.code is not None
    unpacked = unpack(spec.code.bundle, order.artifacts, Path(tempfile.gettempdir()))
    bundle = own_code.use(working_folder.lay_out(unpacked, order.files.folder))
    path = bundle.folder / loop.script
    if not path.is_file():
        raise OwnCodeError(f"the bundle has no file {loop.script!r}")
    sys.argv = [str(path), *loop.argv]
    # Python also puts the folder of a script that it runs first in sys.path.
    sys.path.insert(0, str(path.parent))
    if not order.gpus:
        os.environ["ACCELERATE_USE_CPU"] = "true"
    install_if_asked()
    reports = ScriptReports(order, emit, None if spec.resume_from is None else find)
    try:
        with reports.installed(), refusing_a_second_model():
            runpy.run_path(str(path), run_name="__main__")
        reports.refuse_an_unused_start()
    except ScriptStopped:
        pass
    except FileNotFoundError as error:
        folder = order.files.folder
        raise OwnCodeError(own_code.where(error), hint=not_found(folder), trace=own_code.trace_of(error)) from error


def not_found(folder: Path) -> str:
    """Returns the hint for a script that misses a file: where the script runs, and which files that folder has."""
    names = sorted(path.name + "/" * path.is_dir() for path in folder.iterdir() if not path.name.startswith("."))
    files = listing(names, MOST_NAMES) or "no files"
    return (
        f"the script runs in a folder that has a copy of its bundle: {files}. "
        "Put the file into the folder that --code names, or name an absolute path on the node"
    )


def _continue_in_a_copy(order: Order) -> None:
    """Copies the script's working folder from the newest earlier attempt, because attempts write only to their own."""
    folder = order.files.folder
    for attempt in range(order.attempt - 1, 0, -1):
        source = order.artifacts / attempt_folder(order.job, attempt)
        if (source / BEGUN).is_file():
            shutil.copytree(source, folder, ignore=partial(_not_copied, source), dirs_exist_ok=True, symlinks=True)
            break
    (folder / BEGUN).touch()


def _not_copied(attempt: Path, folder: str, names: list[str]) -> set[str]:
    """Returns the names that are not copied to the next attempt.

    These are the file BEGUN, which marks that the script has started, copies of the script's checkpoints, and what
    killed saves have left.
    """
    left_out = {name for name in names if name.startswith(files.UNFINISHED)}
    if Path(folder) == attempt:
        left_out |= {BEGUN, *(name for name in names if is_checkpoint_copy(attempt / name))}
    return left_out


def _finished(spec: JobSpec, order: Order, emit: Emit, result: dict[str, Any]) -> DoneData:
    folder = order.files.outputs
    try:
        if spec.is_script and spec.code is not None:
            archive = order.artifacts / bundle_file(spec.code.bundle)
            for sentence in working_folder.keep_outputs(order.files.folder, archive):
                if order.rank == 0:
                    emit.note(sentence)
        if order.rank == 0:
            folder.mkdir(parents=True, exist_ok=True)
            for name, content in (("spec.json", spec.as_json()), ("metrics.json", result)):
                # If the script has written a file of this name, that file stays.
                if not (spec.is_script and (folder / name).exists()):
                    (folder / name).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    except OSError as error:
        raise CannotSave(f"the loop has ended, but its outputs could not be written to {folder}: {error}") from error
    return emit.finished_outcome(result)


def _copied(source: str | Path, target: str | Path) -> None:
    """Copies a file atomically, because several ranks may save the same file."""
    temporary = f"{target}.{os.getpid()}"
    shutil.copyfile(source, temporary)
    os.replace(temporary, target)
