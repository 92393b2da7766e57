"""Writes models and checkpoints, also in the background, and deletes old checkpoints."""

from __future__ import annotations

import copy
import io
import json
import logging
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from footplate.trainer import adapters, callback_tensors, seeds
from footplate.trainer import checkpoint as files
from footplate.trainer.background_save import BackgroundSave, copied
from footplate.trainer.hub import pushes_in_progress
from footplate.trainer.internals import SaveFailed
from footplate.trainer.optimizers.schedule_free import is_in_training
from footplate.trainer.overrides import Shortcut, left_out_by
from footplate.trainer.state import watched_metric

if TYPE_CHECKING:
    from footplate.trainer.trainer import Trainer

log = logging.getLogger("footplate.trainer")

NOT_AVERAGED = "weights_are_not_averaged"
"""An entry of training_args.json beside the arguments. Weights with it are those of a schedule-free training."""
MAX_FAILED_SAVES = 3
"""The number of saves in a row that may fail before training stops."""


@left_out_by(Shortcut.PLAIN_SAVE)
def save_model(trainer: Trainer, output_dir: str | None = None, _internal_call: bool = False) -> None:
    """Writes the model's weights, with its config and the processor if these can save themselves.

    With `push_to_hub` the files are uploaded too, unless they belong to a checkpoint (`_internal_call`).
    """
    strategy = trainer._footplate.strategy
    weights = strategy.whole_weights(trainer.model)
    if trainer.args.should_save:
        folder = Path(output_dir or trainer.args.output_dir or ".")
        folder.mkdir(parents=True, exist_ok=True)
        with strategy.original_names(trainer.model):
            trainer._save(str(folder), **({} if weights is None else {"state_dict": weights}))
    if trainer.args.push_to_hub and not _internal_call:
        trainer.push_to_hub(commit_message="Model save")


@left_out_by(Shortcut.PLAIN_SAVE)
def write_model(trainer: Trainer, output_dir: str | None = None, state_dict: dict[str, Any] | None = None) -> None:
    folder = Path(output_dir or trainer.args.output_dir or ".")
    save_pretrained: Any = getattr(trainer.model, "save_pretrained", None)
    if save_pretrained is not None:
        with trainer._footplate.strategy.local_save(trainer.model):
            # An encoder of sentence-transformers takes no weights.
            save_pretrained(folder, **({} if state_dict is None else {"state_dict": state_dict}))
        if adapters.are_in(trainer.model):
            adapters.save_rest(trainer.model, folder, state_dict)
    else:
        files.save_weights(trainer.model, folder / files.MODEL, state_dict)
    _save_processor(trainer, folder)
    _save_arguments(trainer, folder)


def _save_arguments(trainer: Trainer, folder: Path) -> None:
    """Writes training_args.bin, Hugging Face's file, which libraries load. Secrets such as hub_token are left out."""
    args, buffer = copy.copy(trainer.args), io.BytesIO()
    for name in vars(args):
        if name.endswith("_token"):
            setattr(args, name, None)
    try:
        torch.save(args, buffer)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        if trainer._footplate.arguments_pickle:
            log.warning(
                "%s is not written, because the arguments cannot be pickled: %s", files.PICKLED_ARGUMENTS, error
            )
        trainer._footplate.arguments_pickle = False
    else:
        (folder / files.PICKLED_ARGUMENTS).write_bytes(buffer.getvalue())


def _save_processor(trainer: Trainer, folder: Path) -> None:
    processor: Any = trainer.processing_class or getattr(trainer.data_collator, "tokenizer", None)
    if hasattr(processor, "save_pretrained"):
        processor.save_pretrained(folder)


def save_state(trainer: Trainer) -> None:
    if trainer.is_world_process_zero():
        folder = Path(trainer.args.output_dir or ".")
        folder.mkdir(parents=True, exist_ok=True)
        trainer.state.save_to_json(folder / files.STATE)


def save_merged_model(trainer: Trainer, output_dir: str) -> None:
    """Writes the model with peft's adapters merged into its weights. The Trainer's own model keeps its adapters."""
    strategy = trainer._footplate.strategy
    if not strategy.holds_whole:
        raise ValueError(
            f"adapters can be merged only into a whole model, but {type(strategy).__name__} has sharded the model: "
            "call save_model here, load the result in one process, and call save_merged_model there"
        )
    if not trainer.args.should_save:
        return
    merged_model, folder = adapters.merged(trainer.model), Path(output_dir)
    folder.mkdir(parents=True, exist_ok=True)
    save_pretrained: Any = getattr(merged_model, "save_pretrained", None)
    if save_pretrained is not None:
        save_pretrained(folder)
    else:
        files.save_weights(merged_model, folder / files.MODEL)
    _save_processor(trainer, folder)


def save_checkpoint(trainer: Trainer) -> None:
    """Writes a checkpoint, in the background if the arguments allow it. A failure stops training only if repeated."""
    finish_save(trainer)
    # Training changes the model's weights meanwhile. An overridden method of saving may read them, and peft computes
    # some adapters from them.
    is_plain = trainer._footplate.overrides.allow(Shortcut.PLAIN_SAVE)
    if trainer.args.save_in_background and is_plain and not adapters.computed(trainer.model):
        # Everything that the checkpoint stores is copied, and then written in a thread.
        parent, step = checkpoints_folder(trainer), trainer.state.global_step
        _record_best(trainer, parent)
        weights, progress = copied(adapters.state_to_save(trainer.model)), copied(_progress(trainer))
        stamp = dict(trainer._footplate.hooks.stamp)

        def write(folder: Path) -> None:
            trainer._save(str(folder), state_dict=weights)
            _write_progress(progress, folder)

        trainer._footplate.background = BackgroundSave.start(step, lambda: files.commit(parent, step, write, stamp))
        trainer.control.should_save = False
        return
    _conclude(trainer, trainer.state.global_step, lambda: trainer._save_checkpoint(trainer.model, trial=None))


def finish_save(trainer: Trainer) -> None:
    """Waits for a checkpoint that is written in the background, and calls `on_save` or reports the failure."""
    background, trainer._footplate.background = trainer._footplate.background, None
    if background is not None:
        _conclude(trainer, background.step, lambda: delete_old_checkpoints(trainer, background.checkpoint.result()))


def finish_save_after_error(trainer: Trainer) -> None:
    """Waits for a save in the background after training failed. An error of the save is only logged."""
    background = trainer._footplate.background
    if background is not None:
        try:
            finish_save(trainer)
        except Exception as error:
            log.warning("the checkpoint of step %d was not written: %s", background.step, error)


def _conclude(trainer: Trainer, step: int, saving: Callable[[], files.Checkpoint | None]) -> None:
    internals, run = trainer._footplate, trainer._footplate.run
    run.committed = None
    try:
        returned = saving()
    except files.CannotSave as error:
        run.failed_saves += 1
        _record_existing_best(trainer)
        go_on = run.failed_saves <= MAX_FAILED_SAVES
        trainer.control.should_save = False
        internals.hooks.on_save_failed(SaveFailed(step, str(error), run.failed_saves, go_on))
        if not go_on:
            raise
    else:
        run.failed_saves = 0
        checkpoint = returned if isinstance(returned, files.Checkpoint) else run.committed
        if trainer.args.push_to_hub and checkpoint is not None:
            trainer._push_from_checkpoint(str(checkpoint.path))
        trainer.control = trainer.callback_handler.on_save(trainer.args, trainer.state, trainer.control, checkpoint)


@left_out_by(Shortcut.PLAIN_SAVE)
def save(trainer: Trainer, model: nn.Module, trial: Any = None) -> files.Checkpoint | None:
    """Commits a checkpoint of the current state, then deletes the oldest checkpoints.

    Values of several processes are gathered before anything is written, so that a full disk on one of them leaves no
    other process waiting.
    """
    parent = checkpoints_folder(trainer)
    _record_best(trainer, parent)
    step, stamp = trainer.state.global_step, trainer._footplate.hooks.stamp
    progress = _progress(trainer)

    def write(folder: Path) -> None:
        trainer.save_model(str(folder), _internal_call=True)
        _write_progress(progress, folder)

    def commit(write: Callable[[Path], None] = write) -> files.Checkpoint:
        return delete_old_checkpoints(trainer, files.commit(parent, step, write, stamp))

    def follow() -> None:
        trainer.save_model(str(parent / f"checkpoint-{step}"), _internal_call=True)

    strategy = trainer._footplate.strategy
    run = trainer._footplate.run
    if strategy.writes_shards:
        run.committed = strategy.save_shards(commit, lambda folder: _write_pieces(trainer, progress, folder))
        return run.committed
    with strategy.keep_whole_weights(trainer.model):
        run.committed = strategy.save_from_main(commit, follow)
    return run.committed


def _write_pieces(trainer: Trainer, progress: dict[str, Any], folder: Path) -> None:
    from footplate.trainer.strategies import shards

    leads = trainer.args.should_save
    shards.write(folder, trainer.model, progress.get(files.OPTIMIZER), leads=leads)
    if leads:
        config: Any = getattr(trainer.model, "config", None)
        if hasattr(config, "save_pretrained"):
            config.save_pretrained(folder)
        _save_processor(trainer, folder)
        _save_arguments(trainer, folder)
        _write_progress({name: value for name, value in progress.items() if name != files.OPTIMIZER}, folder)


def checkpoints_folder(trainer: Trainer) -> Path:
    """Returns the folder in which the checkpoints of the current run or trial are written."""
    return Path(trainer._get_output_dir(trial=trainer._footplate.trial))


def _record_best(trainer: Trainer, parent: Path) -> None:
    """Records the checkpoint of the best step, if it exists or is the one that is being saved."""
    state = trainer.state
    best = parent / f"checkpoint-{state.best_global_step}"
    if state.best_global_step and (
        state.best_global_step == state.global_step or trainer._footplate.strategy.peers.from_main(best.exists)
    ):
        state.best_model_checkpoint = str(best)


def _record_existing_best(trainer: Trainer) -> None:
    """If the best checkpoint's save failed, records the best checkpoint that exists instead."""
    state, parent, peers = trainer.state, checkpoints_folder(trainer), trainer._footplate.strategy.peers
    if state.best_model_checkpoint is None or peers.from_main(Path(state.best_model_checkpoint).is_dir):
        return
    steps = peers.from_main(lambda: best_steps(trainer, parent))
    state.best_model_checkpoint = str(parent / f"checkpoint-{steps[0]}") if steps else None


def delete_old_checkpoints(trainer: Trainer, checkpoint: files.Checkpoint) -> files.Checkpoint:
    """Deletes old checkpoints as `save_total_limit`, `keep_last` and `keep_best` say. Those in use are kept."""
    args, parent = trainer.args, checkpoint.path.parent
    protect = {*trainer._footplate.hooks.relied_on(), *pushes_in_progress(trainer)}
    if trainer.state.best_model_checkpoint is not None:
        protect.add(Path(trainer.state.best_model_checkpoint))
    if args.keep_best:
        protect |= {parent / f"checkpoint-{step}" for step in best_steps(trainer, parent)[: args.keep_best]}
    limit = args.keep_last or args.save_total_limit
    counts_protected = args.keep_last is None and args.keep_best is None
    files.rotate(parent, limit, checkpoint, protect, counts_protected=counts_protected)
    return checkpoint


def best_steps(trainer: Trainer, parent: Path) -> list[int]:
    """Returns the steps of existing checkpoints, sorted by their evaluation, best first. A NaN does not count."""
    name = watched_metric(trainer.args)
    values = {entry["step"]: entry[name] for entry in trainer.state.log_history if name in entry}
    steps = [step for step in values if values[step] == values[step] and (parent / f"checkpoint-{step}").is_dir()]
    return sorted(steps, key=values.__getitem__, reverse=bool(trainer.args.greater_is_better))


def _progress(trainer: Trainer) -> dict[str, Any]:
    """Returns the content of each file of a checkpoint by file name, except for the model's files."""
    state, args, strategy = trainer.state, trainer.args, trainer._footplate.strategy
    trainer.store_flos()
    state.stateful_callbacks = _callback_states(trainer)
    run, samples = trainer._footplate.run, trainer.get_total_train_batch_size(args)
    # From the number of processes and of samples per step, a resume finds its position in the data.
    arguments = args.to_dict() | {"world_size": strategy.peers.world, "samples_per_step": samples}
    if run.plan.shift:
        arguments["step_shift"] = run.plan.shift
    if is_in_training(getattr(strategy.plain_optimizer(trainer.optimizer), "param_groups", ())):
        arguments[NOT_AVERAGED] = True
    text_files = {files.STATE: state.to_json_string(), files.ARGUMENTS: json.dumps(arguments, indent=2) + "\n"}
    if args.save_only_model:
        return text_files
    epoch, places = run.epoch, {}
    if epoch is not None:
        epoch.is_over = epoch.is_over or trainer.control.should_epoch_stop
        places = {"places": epoch.places()}
    rngs = strategy.peers.all_gather({**seeds.rng_state(), **places})
    tensors = callback_tensors.collect(trainer.callback_handler.callbacks)
    return {
        **({callback_tensors.FILE: tensors} if tensors else {}),
        **({} if strategy.scale is None else {files.SCALER: strategy.scale.scaler.state_dict()}),
        files.OPTIMIZER: strategy.optimizer_state(trainer.optimizer),
        files.SCHEDULER: trainer.lr_scheduler.state_dict(),
        **{files.rng_name(rank, len(rngs)): state for rank, state in enumerate(rngs)},
        **text_files,
    }


def _write_progress(progress: dict[str, Any], folder: Path) -> None:
    for name, value in progress.items():
        if isinstance(value, str):
            (folder / name).write_text(value, encoding="utf-8")
        else:
            files.save_tensors(value, folder / name)


def _callback_states(trainer: Trainer) -> dict[str, Any]:
    """Returns the callbacks' states by class name. A class that occurs several times has a list of states."""
    states: dict[str, list[Any]] = {}
    for callback in (*trainer.callback_handler.callbacks, trainer.control):
        if hasattr(callback, "state"):
            states.setdefault(type(callback).__name__, []).append(callback.state())
    return {name: values if len(values) > 1 else values[0] for name, values in states.items()}
