"""The training process, from its first line to its last. Read `main`, then `train`: they are the pipeline.

    order -> place (folder, GPUs, limits) -> spec -> parts -> Trainer -> checkpoint to continue from -> train -> outputs

It inherits a socket to emit on, a byte that tells it to stop, and stdout. It knows no queue, no Redis and no key.
"""

from __future__ import annotations

import faulthandler
import json
import os
import resource
import shutil
import signal
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError

from footplate.contract.arguments import Seq2SeqTrainingArguments as Generating
from footplate.contract.crash_points import Moment, reached
from footplate.contract.errors import OwnCodeError
from footplate.contract.events import DoneData, Ending, Kind, StateData, json_safe
from footplate.contract.host import outcome, tracker_folders
from footplate.contract.host.bundle_files import at_its_place, unpacked
from footplate.contract.host.data_fingerprint import looks, require_same, write_down
from footplate.contract.host.environment import PLACE as EXTENSIONS_PLACE
from footplate.contract.host.file_roots import Files
from footplate.contract.host.launch import ANOTHER_S, OUTCOME, TICK, Order, read_order
from footplate.contract.lifecycle import Reason
from footplate.contract.spec import JobSpec
from footplate.contract.spec_parts import Script
from footplate.contract.strategies import strategy_arguments
from footplate.runtime import extensions, notes, own_code, own_loop, predictions, process_group
from footplate.runtime.build import Parts, build
from footplate.runtime.emit import Emit, SecondaryWire, StoppedEvaluating, Wire
from footplate.runtime.inherited_best import KeepBest
from footplate.runtime.learning import save_model, suit
from footplate.runtime.live_commands import OurRun, Steering
from footplate.runtime.starting_point import Beginning, begin_loop, beginning
from footplate.trainer.callbacks import PrinterCallback, ProgressCallback
from footplate.trainer.checkpoint import CannotSave
from footplate.trainer.seq2seq import Seq2SeqTrainer, Seq2SeqTrainingArguments
from footplate.trainer.trainer import Trainer, set_seed

FLUSH_SECONDS = 60.0
"""How long the last events may take to leave: the supervisor is told of everything before this process ends."""


def main(order_fd: int, events_fd: int, stop_fd: int, forked_at: float, meeting: int | None = None) -> int:
    """Runs one rank of one attempt; the exit code says only whether the outcome was told."""
    started = time.monotonic()
    order = read_order(order_fd)
    wire = SecondaryWire(events_fd) if order.rank else Wire(events_fd)
    emit: Emit | None = None
    another_s = False
    try:
        emit = Emit(wire, stop_fd, order.files)
        notes.let_hear(emit.users_note)
        wire.send(TICK, {"forked_ms": round((started - forked_at) * 1000, 1)})
        settle(order)
        process_group.join(order, meeting)
        done = train(order, emit)
    except BaseException as error:
        # Or torch's handler raises once more, here, when the next data worker is found dead.
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        verdict, another_s = outcome.of_exception(error, order.rank), process_group.is_another_s(error)
        done = DoneData(ending=Ending.FAILED, reason=verdict.reason, error=verdict.error)
        if emit is not None:
            with suppress(Exception):
                emit.last_progress()
    wire.send(OUTCOME, {**done.model_dump(mode="json"), ANOTHER_S: another_s})
    sys.stdout.flush()
    wire.flush(within=FLUSH_SECONDS)
    return 0


def settle(order: Order) -> None:
    """Makes this process the attempt's own: its folder, its GPUs, its limits."""
    folder = order.files.folder
    folder.mkdir(parents=True, exist_ok=True)
    os.chdir(folder)
    # Libraries such as TRL report each Trainer that is made.
    os.environ["HF_HUB_DISABLE_TELEMETRY"] = "1"
    os.environ.update(order.environment)
    # Asked for once and remembered, perhaps before the fork.
    tempfile.tempdir = None
    # Before anything asks CUDA: it reads this once.
    os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(order.gpus)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    torch.set_num_threads(order.threads)
    sys.stdout = open(1, "w", buffering=1, errors="replace", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", buffering=1, errors="replace", closefd=False)  # noqa: SIM115
    faulthandler.enable(file=2)
    os.register_at_fork(before=_remember_forker, after_in_child=_die_with_trainer)


def train(order: Order, emit: Emit) -> DoneData:
    """The attempt as a story."""
    spec = JobSpec.parse(order.spec)
    args = replace(
        spec.training,
        output_dir=str(order.files.folder),
        **tracker_folders.arguments(spec, order),
        **strategy_arguments(spec.resources.strategy),
    )
    # Before the model is made, so that its first weights follow the seed.
    set_seed(args.seed)
    if spec.code is not None:
        own_code.require(spec.code.requires)
        if order.unpacked is not None:
            own_code.use(unpacked(spec.code.bundle, order.unpacked))
        # A script's lies in its working folder, where the loop puts it.
        elif not isinstance(spec.loop, Script):
            kept = Path(order.environment[EXTENSIONS_PLACE]).parent
            place = partial(at_its_place, folder=kept)
            own_code.opened(spec.code.bundle, order.artifacts, Path(tempfile.gettempdir()), place)
    if EXTENSIONS_PLACE in order.environment:
        extensions.watch(partial(emit.wire.send, TICK, {}), emit.note, spec.resources.stall_limit)
    if spec.loop is not None:
        emit.wire.send(Kind.STATE, StateData(state="running").model_dump(exclude_none=True))
        return own_loop.run(spec, order, emit, lambda: begin_loop(spec, order, emit))
    parts = build(spec, order.roots)
    trainer = assemble(spec, parts, args, emit)
    trainer._footplate.hooks.stamp = order.stamp
    trainer._footplate.hooks.on_save_failed = emit.save_failed
    trainer._footplate.hooks.relied_on = emit.relied_on
    trainer._footplate.hooks.where_is = order.files.here
    emit.peers = trainer._footplate.strategy.peers
    emit.wire.send(Kind.STATE, StateData(state="running").model_dump(exclude_none=True))
    if not order.gpus and order.rank == 0 and (args.bf16 or args.fp16):
        emit.note("without a GPU, mixed precision runs under CPU autocast")
    try:
        done = train_evaluate_predict(trainer, parts, spec, order, emit)
    except StoppedEvaluating:
        done = stopped(trainer, emit)
    trainer.end()
    return done


def train_evaluate_predict(trainer: Trainer, parts: Parts, spec: JobSpec, order: Order, emit: Emit) -> DoneData:
    """What there is data for."""
    if parts.train is not None:
        begins = emit.peers.from_main(lambda: prepare_to_continue(spec, order, emit, parts.read))
        folder = begins.of(trainer) if begins else None
        if begins is not None and not begins.is_own:
            trainer.add_callback(KeepBest(order.files, emit))
        steering = Steering(emit.wire, emit.stop_fd, order.deeds)
        steering.run = OurRun(trainer)
        steering.begin(folder)
        trainer.add_callback(steering)
        trainer.train(resume_from_checkpoint=folder)
        if emit.agree() and trainer.state.global_step < trainer.state.max_steps:
            return stopped(trainer, emit)
    elif spec.resume_from is not None and (begins := emit.peers.from_main(lambda: beginning(spec, order, emit))):
        begins.of(trainer)
    # Who brings a set to evaluate on and says nothing of when wants to know how good the outputs are.
    if parts.eval is not None and (parts.train is None or spec.training.eval_strategy == "no"):
        trainer.evaluate()
    return finished(trainer, spec, order, emit, test=parts.test)


def prepare_to_continue(spec: JobSpec, order: Order, emit: Emit, read: Files) -> Beginning | None:
    """By the first rank, for all."""
    _carry_tracking(order, emit)
    now = {**looks(read), **order.commits}
    write_down(order.files.folder, now)
    begins = beginning(spec, order, emit)
    if begins is not None and begins.is_own:
        require_same(Path(begins.folder).parent, now)
    return begins


def stopped(trainer: Trainer, emit: Emit) -> DoneData:
    """As it was asked to, before its end."""
    return DoneData(
        ending=Ending.STOPPED,
        reason=Reason.CANCEL,
        result=result(trainer, emit),
        had_checkpoint=emit.had_checkpoint,
    )


def assemble(spec: JobSpec, parts: Parts, args: Any, emit: Emit) -> Trainer:
    trainer = trainer_class(spec)(
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
    )
    suit(trainer, parts.loss, parts.optimizers)
    # Its lines would say in text what the events say in numbers.
    trainer.remove_callback(PrinterCallback)
    trainer.remove_callback(ProgressCallback)
    # Last of all, so that it sees what the job's own callbacks decided, and has the last word about stopping.
    trainer.add_callback(emit)
    return trainer


def trainer_class(spec: JobSpec) -> type[Trainer]:
    """Ours, or the bundle's own, which has to be a subclass of it."""
    needed = Seq2SeqTrainer if isinstance(spec.training, Generating) else Trainer
    if spec.trainer is None:
        return needed
    found = own_code.attribute(spec.trainer)
    if not (isinstance(found, type) and issubclass(found, needed)):
        because = ", which training.predict_with_generate asks for" if needed is Seq2SeqTrainer else ""
        raise OwnCodeError(
            f"{spec.trainer} is no subclass of footplate's {needed.__name__}{because}",
            hint=f"from footplate import {needed.__name__}, and derive from that",
        )
    return found


def finished(trainer: Trainer, spec: JobSpec, order: Order, emit: Emit, *, test: Any = None) -> DoneData:
    """Trained to the end: what a user wants to keep is written where they look for it."""
    folder = order.files.outputs
    predicted = trainer.predict(test) if test is not None else None
    told = result(trainer, emit)
    try:
        if spec.data.train is not None:
            save_model(trainer, folder)
        if order.rank == 0:
            _write_beside_the_model(folder, spec, told, predicted and _readable(predicted, trainer))
    except (OSError, SafetensorError) as error:
        if order.rank == 0:
            _drop(folder)
        raise CannotSave(f"training is done, and its outputs could not be written to {folder}: {error}") from error
    reached(Moment.AFTER_OUTPUTS_WRITTEN)
    return DoneData(
        ending=Ending.FINISHED,
        reason=Reason.COMPLETED,
        result=told,
        had_checkpoint=emit.had_checkpoint,
        outputs=order.files.relative(folder),
    )


def _write_beside_the_model(folder: Path, spec: JobSpec, told: dict[str, Any], predicted: Any) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    if predicted is not None:
        predictions.write(folder, *predicted)
    (folder / "spec.json").write_text(json.dumps(spec.as_json(), indent=2) + "\n", encoding="utf-8")
    (folder / "metrics.json").write_text(json.dumps(told, indent=2) + "\n", encoding="utf-8")


def _readable(predicted: Any, trainer: Trainer) -> tuple[Any, Any]:
    """(predictions, labels); as texts, where that is what the model made."""
    found = predicted.predictions, predicted.label_ids
    if not getattr(trainer.args, "predict_with_generate", False):
        return found
    said, wanted = (predictions.as_texts(each, trainer.processing_class) for each in found)
    return said, wanted


def _drop(outputs: Path) -> None:
    """Half of them are of no use, and take the room that is missing. What trackers told is of the next attempt too."""
    for each in outputs.iterdir() if outputs.is_dir() else ():
        if each.is_file():
            each.unlink(missing_ok=True)
        elif each.name != tracker_folders.FOLDER:
            shutil.rmtree(each, ignore_errors=True)
    with suppress(OSError):
        outputs.rmdir()


def _carry_tracking(order: Order, emit: Emit) -> None:
    try:
        tracker_folders.carry_over(order)
    except OSError as error:
        emit.note(f"what earlier attempts told TensorBoard could not be copied, so its run begins here: {error}")


def result(trainer: Trainer, emit: Emit) -> dict[str, Any]:
    """Final figures, and the best evaluation where one was looked for."""
    state = trainer.state
    told: dict[str, Any] = {"steps": state.global_step, "final": json_safe(emit.latest), "best": None}
    if "train_loss" in emit.latest:
        told["train_loss"] = json_safe(emit.latest["train_loss"])
    if state.best_metric is not None:
        told["best"] = {
            "metric": trainer.args.metric_for_best_model,
            "value": json_safe(state.best_metric),
            "step": state.best_global_step,
        }
    return told


# What training forks (data loaders) dies with it, even where nobody is left to kill the group. PDEATHSIG follows the
# forking thread, so only for what the main thread forks: another thread may end long before its children should.

_forker = (0, False)


def _remember_forker() -> None:
    import threading

    global _forker
    _forker = (os.getpid(), threading.get_native_id() == os.getpid())


def _die_with_trainer() -> None:
    from footplate.contract.host.linux import die_with_parent

    pid, was_main_thread = _forker
    if was_main_thread:
        die_with_parent(pid)
