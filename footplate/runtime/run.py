"""The training process. `main` runs one rank of one attempt, and `train` is the pipeline.

    order -> folder, GPUs, limits -> spec -> parts -> Trainer -> checkpoint to continue from -> train -> outputs

The process inherits a socket for events, memory with a byte that requests a stop, and stdout. It has no access to
queue, Redis and keys.
"""

from __future__ import annotations

import faulthandler
import json
import logging
import os
import resource
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError

from footplate.components import notes
from footplate.contract.arguments import Seq2SeqTrainingArguments as Generating
from footplate.contract.arguments import stated
from footplate.contract.errors import OwnCodeError
from footplate.contract.events import DoneData, Ending, json_safe
from footplate.contract.host import outcome, tracker_folders
from footplate.contract.host.bundle_files import copy_to_fixed_path, unpack, unpacked
from footplate.contract.host.data_fingerprint import fingerprints, require_same, write_record
from footplate.contract.host.environment import EXTENSIONS_VARIABLE
from footplate.contract.host.file_roots import Files
from footplate.contract.host.launch import OUTCOME, TICK, Order, read_order
from footplate.contract.host.linux import die_with_parent
from footplate.contract.spec import JobSpec
from footplate.contract.strategies import strategy_arguments
from footplate.runtime import extensions, own_code, own_loop, prediction_files, process_group
from footplate.runtime.build import Parts, build, check_trainer, merges_at_end, save_model
from footplate.runtime.emit import Emit, EventSocket, StoppedEvaluating
from footplate.runtime.export import export
from footplate.runtime.live_commands import FootplateRun, LiveCommands
from footplate.runtime.program_end import end_program, write_buffers
from footplate.runtime.serving.session import serve
from footplate.runtime.starting_point import KeepBest, StartingPoint, find_starting_point, load_checkpoint
from footplate.trainer.callbacks import PrinterCallback, ProgressCallback, TrainerCallback
from footplate.trainer.checkpoint import CannotSave
from footplate.trainer.seq2seq import Seq2SeqTrainer, Seq2SeqTrainingArguments
from footplate.trainer.state import TrainerControl, TrainerState
from footplate.trainer.trainer import Trainer, set_seed

FLUSH_SECONDS = 60.0
"""The time that sending the last events may take before the process ends."""


def main(order_fd: int, events_fd: int, stop_fd: int, forked_at: float, inherited: int | None = None) -> int:
    """Runs one rank of one attempt, and sends its outcome to the supervisor. Returns 0.

    `inherited` is the socket of the rendezvous, or that of a serving session's requests.
    """
    start_time = time.monotonic()
    order = read_order(order_fd)
    event_socket = EventSocket(events_fd, order.rank)
    emit: Emit | None = None
    try:
        emit = Emit(event_socket, stop_fd, order.files)
        notes.set_listener(emit.users_note)
        event_socket.send(TICK, {"forked_ms": round((start_time - forked_at) * 1000, 1)})
        prepare_process(order)
        process_group.join(order, inherited)
        end = train(order, emit, inherited)
    except BaseException as error:
        # Without this, torch's handler would raise another error in the lines below when the next data worker dies.
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        verdict = outcome.of_exception(error, order.rank)
        failure, is_follow_up = own_code.described(error, verdict.error), process_group.is_caused_by_another_rank(error)
        end = DoneData(ending=Ending.FAILED, reason=verdict.reason, error=failure, is_follow_up=is_follow_up)
        if emit is not None:
            with suppress(Exception):
                emit.last_progress()
    event_socket.send(OUTCOME, end.model_dump(mode="json"))
    event_socket.flush(within=FLUSH_SECONDS)
    with suppress(Exception):
        write_buffers(within=FLUSH_SECONDS)
    return 0


def prepare_process(order: Order) -> None:
    """Prepares this process for its attempt: the working folder, GPUs, variables, threads and output."""
    folder = order.files.folder
    folder.mkdir(parents=True, exist_ok=True)
    os.chdir(folder)
    os.environ.update(order.environment)
    # tempfile may have cached a folder before the fork. None makes it read the new TMPDIR.
    tempfile.tempdir = None
    # CUDA reads this variable once, at its first use.
    os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(order.gpus)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    torch.set_num_threads(order.threads)
    sys.stdout = open(1, "w", buffering=1, errors="replace", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", buffering=1, errors="replace", closefd=False)  # noqa: SIM115
    faulthandler.enable(file=2)
    os.register_at_fork(before=_remember_forker, after_in_child=_die_with_trainer)


def train(order: Order, emit: Emit, inherited: int | None = None) -> DoneData:
    """Runs the attempt, and returns its outcome. A serving session reads its requests from `inherited`."""
    spec = JobSpec.parse(order.spec)
    placed = {
        "output_dir": str(order.files.folder),
        **tracker_folders.arguments(spec, order),
        **strategy_arguments(spec.resources.strategy),
    }
    args = replace(spec.training, **placed)
    # The seed is set before the model is made, because its first weights depend on the seed.
    set_seed(args.seed)
    if spec.code is not None:
        own_code.require(spec.code.requires)
        if order.unpacked is not None:
            own_code.use(unpacked(spec.code.bundle, order.unpacked))
        # A script's bundle is copied into its working folder by own_loop.
        elif not spec.is_script:
            bundle = unpack(spec.code.bundle, order.artifacts, Path(tempfile.gettempdir()))
            own_code.use(copy_to_fixed_path(bundle, Path(order.environment[EXTENSIONS_VARIABLE]).parent))
    if EXTENSIONS_VARIABLE in order.environment:
        extensions.watch(partial(emit.event_socket.send, TICK, {}), emit.note, spec.resources.stall_limit)
    if spec.loop is not None:
        emit.report_running()
        if spec.is_script:
            # With the handlers of the warm parent, the script's own `logging.basicConfig` would do nothing.
            logging.root.handlers.clear()
            logging.root.setLevel(logging.WARNING)
        return own_loop.run(spec, order, emit, partial(end_program, emit.note))
    tracker_folders.use_outputs(spec, order, os.environ)
    parts = build(spec, order.roots)
    trainer = assemble(spec, parts, args, emit, {**stated(spec.training), **placed})
    trainer._footplate.hooks.stamp = order.stamp
    trainer._footplate.hooks.on_save_failed = emit.save_failed
    trainer._footplate.hooks.relied_on = emit.relied_on
    trainer._footplate.hooks.where_is = order.files.here
    emit.peers = trainer._footplate.strategy.peers
    if spec.export is not None:
        return export(spec.export, spec, trainer, order, emit)
    if spec.serve is not None:
        return serve(spec, parts, trainer, order, emit, inherited)
    emit.report_running()
    if order.rank == 0 and "wandb" in spec.report_to and os.environ.get("WANDB_MODE") == "offline":
        emit.note("W&B works offline: its run is among the outputs, in wandb/. `wandb sync` sends it to W&B's server")
    if not order.gpus and order.rank == 0 and (trainer.args.bf16 or trainer.args.fp16):
        emit.note("without a GPU, mixed precision runs under CPU autocast")
    try:
        end = train_evaluate_predict(trainer, parts, spec, order, emit)
    except StoppedEvaluating:
        end = emit.stopped_outcome(result(trainer, emit))
    trainer.end()
    return end


def train_evaluate_predict(trainer: Trainer, parts: Parts, spec: JobSpec, order: Order, emit: Emit) -> DoneData:
    """Trains, evaluates and predicts. Each is skipped if the spec has no data for it."""
    if parts.train is not None:
        start = emit.peers.from_main(lambda: prepare_to_continue(spec, order, emit, parts.data_files))
        folder = start.load(trainer, emit.note) if start else None
        if start is not None and not start.is_own:
            trainer.add_callback(KeepBest(order.files, emit))
        live_commands = LiveCommands(emit.event_socket, emit.stop_fd, order.commands)
        live_commands.run = FootplateRun(trainer, emit.peers)
        live_commands.begin(folder)
        trainer.add_callback(live_commands)
        trainer.train(resume_from_checkpoint=folder)
        if emit.agree() and trainer.state.global_step < trainer.state.max_steps:
            return emit.stopped_outcome(result(trainer, emit))
    elif spec.resume_from is not None:
        load_checkpoint(spec, trainer, order, emit)
    # A job that has evaluation data and no eval_strategy is evaluated once, at the end.
    is_due = spec.final_eval is not None or parts.train is None or spec.training.eval_strategy == "no"
    if parts.eval is not None and is_due:
        trainer.evaluate()
    return finish(trainer, spec, order, emit, test=parts.test)


def prepare_to_continue(spec: JobSpec, order: Order, emit: Emit, data_files: Files) -> StartingPoint | None:
    """Returns the starting point, after checks and copies of earlier attempts' files. Runs on the first rank only."""
    try:
        tracker_folders.copy_earlier_files(order)
    except OSError as error:
        emit.note(f"the trackers' files of earlier attempts could not be copied, so trackers begin new runs: {error}")
    record = {**fingerprints(data_files), **order.commits}
    write_record(order.files.folder, record)
    start = find_starting_point(spec, order, emit)
    if start is not None and start.is_own:
        require_same(Path(start.folder).parent, record)
    return start


def assemble(spec: JobSpec, parts: Parts, args: Any, emit: Emit, spec_args: Mapping[str, Any]) -> Trainer:
    """Makes the Trainer. A library's trainer gets only the spec's arguments, as it has its own defaults."""
    if parts.make_trainer is None:
        trainer = our_trainer(spec, parts, args)
    else:
        trainer = parts.make_trainer(parts, spec_args, **parts.trainer_args)
    check_trainer(trainer, parts.optimizers)
    if hasattr(parts.loss, "shifts_labels"):
        parts.loss.shifts_labels = trainer._footplate.model_signature.shifts_labels
    # These two callbacks would print lines that repeat the job's events.
    trainer.remove_callback(PrinterCallback)
    trainer.remove_callback(ProgressCallback)
    if args.save_strategy == "no":
        trainer.add_callback(SaveAtEnd(emit))
    # This callback is the last one, so that it sees the decisions of the job's own callbacks, and decides about stops.
    trainer.add_callback(emit)
    return trainer


class SaveAtEnd(TrainerCallback):
    """A callback that saves one checkpoint, after the last step, or when another callback ends the training early.

    It is for jobs whose `save_strategy` is "no". Without a checkpoint, their models could not be tried or forked.
    When the user stops the job, the request to stop decides if a checkpoint is saved.
    """

    def __init__(self, emit: Emit) -> None:
        self._emit, self._saved_step = emit, 0

    def on_step_end(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> TrainerControl:
        is_over = state.global_step >= state.max_steps or (control.should_training_stop and self._emit.obeyed is None)
        if is_over and state.global_step != self._saved_step:
            control.should_save = True
        return control

    # Early stopping comes after an evaluation or an epoch.
    on_evaluate = on_epoch_end = on_step_end

    def on_save(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        self._saved_step = state.global_step


def our_trainer(spec: JobSpec, parts: Parts, args: Any) -> Trainer:
    return trainer_class(spec)(
        model=parts.model,
        args=Seq2SeqTrainingArguments.of(args) if isinstance(args, Generating) else args,
        data_collator=parts.collator,
        train_dataset=parts.train,
        eval_dataset=parts.eval,
        processing_class=parts.processor,
        compute_loss_func=parts.loss,
        optimizers=parts.optimizers or (None, None),
        callbacks=parts.callbacks,
        metrics=parts.metrics,
        compute_metrics=parts.compute_metrics,
        **parts.trainer_args,
    )


def trainer_class(spec: JobSpec) -> type[Trainer]:
    """Returns our Trainer, or the bundle's own subclass of it. Raises OwnCodeError if it is not a subclass."""
    needed = Seq2SeqTrainer if isinstance(spec.training, Generating) else Trainer
    if spec.trainer is None:
        return needed
    own_class = own_code.attribute(spec.trainer.use)
    if not (isinstance(own_class, type) and issubclass(own_class, needed)):
        because = ", which training.predict_with_generate needs" if needed is Seq2SeqTrainer else ""
        raise OwnCodeError(
            f"{spec.trainer.use} is not a subclass of footplate's {needed.__name__}{because}",
            hint=f"from footplate import {needed.__name__}, and derive from that",
        )
    return own_class


def finish(trainer: Trainer, spec: JobSpec, order: Order, emit: Emit, *, test: Any = None) -> DoneData:
    """Writes the outputs: model, predictions, spec and metrics. Returns the outcome of a finished run."""
    folder = order.files.outputs
    predicted = trainer.predict(test) if test is not None else None
    metrics = result(trainer, emit)
    try:
        if spec.data.train is not None:
            save_model(trainer, folder, merges=merges_at_end(trainer.model))
        if order.rank == 0:
            folder.mkdir(parents=True, exist_ok=True)
            if predicted is not None:
                outputs, labels = predicted.predictions, predicted.label_ids
                if getattr(trainer.args, "predict_with_generate", False):
                    outputs = prediction_files.as_texts(outputs, trainer.processing_class)
                    labels = prediction_files.as_texts(labels, trainer.processing_class)
                prediction_files.write(folder, outputs, labels)
            for name, content in (("spec.json", spec.as_json()), ("metrics.json", metrics)):
                (folder / name).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    except (OSError, SafetensorError) as error:
        if order.rank == 0:
            _drop(folder)
        raise CannotSave(f"training has ended, but its outputs could not be written to {folder}: {error}") from error
    return emit.finished_outcome(metrics)


def _drop(outputs: Path) -> None:
    """Deletes incomplete outputs, which take space. Files of trackers stay, because the next attempt continues them."""
    for path in outputs.iterdir() if outputs.is_dir() else ():
        if path.is_file():
            path.unlink(missing_ok=True)
        elif path.name not in tracker_folders.FOLDERS:
            shutil.rmtree(path, ignore_errors=True)
    with suppress(OSError):
        outputs.rmdir()


def result(trainer: Trainer, emit: Emit) -> dict[str, Any]:
    """Returns the final metrics, and the best evaluation if the arguments name a metric for it."""
    state = trainer.state
    metrics: dict[str, Any] = {"steps": state.global_step, "final": json_safe(emit.latest), "best": None}
    if "train_loss" in emit.latest:
        metrics["train_loss"] = json_safe(emit.latest["train_loss"])
    if state.best_metric is not None:
        metrics["best"] = {
            "metric": trainer.args.metric_for_best_model,
            "value": json_safe(state.best_metric),
            "step": state.best_global_step,
        }
    return metrics


# Processes that training forks, such as data loaders, die with it, even if no other process kills the group. PDEATHSIG
# is sent when the forking thread ends, so it is used only for what the main thread forks.

_forker = (0, False)


def _remember_forker() -> None:
    global _forker
    _forker = (os.getpid(), threading.get_native_id() == os.getpid())


def _die_with_trainer() -> None:
    pid, was_main_thread = _forker
    if was_main_thread:
        die_with_parent(pid)
