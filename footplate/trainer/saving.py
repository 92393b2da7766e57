"""Writes models and checkpoints, and restores a run from a checkpoint."""

from __future__ import annotations

import copy
import inspect
import io
import json
import logging
import pickle
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from pickle import UnpicklingError
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

from footplate.contract.arguments.training import fixed
from footplate.contract.errors import CheckpointCorrupt
from footplate.trainer import adapters, callback_tensors, seeds
from footplate.trainer import checkpoint as files
from footplate.trainer.background import BackgroundSave, copied
from footplate.trainer.hub import pushes_in_progress
from footplate.trainer.internals import SaveFailed
from footplate.trainer.optimizers.groups import parameter_groups
from footplate.trainer.optimizers.schedule_free import SCHEDULE_FREE
from footplate.trainer.overrides import Shortcut, left_out_by
from footplate.trainer.state import TrainerState, watched_metric
from footplate.trainer.strategies.peers import OneProcess

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
    whole, folder = adapters.merged(trainer.model), Path(output_dir)
    folder.mkdir(parents=True, exist_ok=True)
    save_pretrained: Any = getattr(whole, "save_pretrained", None)
    if save_pretrained is not None:
        save_pretrained(folder)
    else:
        files.save_weights(whole, folder / files.MODEL)
    _save_processor(trainer, folder)


def save_checkpoint(trainer: Trainer) -> None:
    """Writes a checkpoint, in the background if the arguments allow it. A failure stops training only if repeated."""
    finish_save(trainer)
    # Training changes the model's weights meanwhile. An overridden method of saving may read them, and peft computes
    # some adapters from them.
    is_plain = trainer._footplate.overrides.allow(Shortcut.PLAIN_SAVE)
    if trainer.args.save_in_background and is_plain and not adapters.computed(trainer.model):
        # Everything that the checkpoint stores is copied, and then written in a thread.
        parent, step = _note_best(trainer), trainer.state.global_step
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
    parent = _note_best(trainer)
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
        config_and_processor: tuple[Any, ...] = (getattr(trainer.model, "config", None), trainer.processing_class)
        for component in config_and_processor:
            if hasattr(component, "save_pretrained"):
                component.save_pretrained(folder)
        _save_arguments(trainer, folder)
        _write_progress({name: value for name, value in progress.items() if name != files.OPTIMIZER}, folder)


def _note_best(trainer: Trainer) -> Path:
    state, parent = trainer.state, Path(trainer._get_output_dir(trial=trainer._footplate.trial))
    best = parent / f"checkpoint-{state.best_global_step}"
    if state.best_global_step and (
        state.best_global_step == state.global_step or trainer._footplate.strategy.peers.from_main(best.exists)
    ):
        state.best_model_checkpoint = str(best)
    return parent


def _record_existing_best(trainer: Trainer) -> None:
    """If the best checkpoint's save failed, records the best checkpoint that exists instead."""
    state, parent = trainer.state, Path(trainer._get_output_dir(trial=trainer._footplate.trial))
    peers = trainer._footplate.strategy.peers
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
    if _is_in_training(getattr(strategy.plain_optimizer(trainer.optimizer), "param_groups", ())):
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


def find(trainer: Trainer, requested: str | Path | bool | None) -> Path | None:
    """Returns the checkpoint that `resume_from_checkpoint` means, verified. True means the newest in output_dir.

    The main process first removes the remains of interrupted saves.
    """
    peers, parent = trainer._footplate.strategy.peers, Path(trainer.args.output_dir or ".")
    if trainer.args.should_save:
        files.sweep(parent)
    return peers.from_main(lambda: _find(parent, requested))


def _find(parent: Path, requested: str | Path | bool | None) -> Path | None:
    if requested is None or requested is False:
        return None
    if requested is True:
        newest = files.latest_checkpoint(parent)
        if newest is None:
            raise ValueError(f"No valid checkpoint found in output directory ({parent}): there is none to resume from")
        return newest
    folder = Path(requested)
    if isinstance(requested, files.Verified):
        return folder
    if not folder.is_dir():
        raise ValueError(f"Can't find a valid checkpoint at {folder}: it is not a folder")
    if (folder / files.MANIFEST).exists() or not (folder / files.STATE).exists():
        files.verify(folder)
    else:
        log.warning("%s has no manifest, so Footplate did not write it: it is loaded without verification", folder)
    return folder


def load_state(trainer: Trainer, folder: Path) -> tuple[TrainerState, dict[str, Any]]:
    """Returns a checkpoint's TrainerState and the stored arguments of the run that wrote it.

    Raises ValueError if this run's arguments contradict the checkpoint.
    """
    internals = trainer._footplate
    state, arguments = internals.strategy.peers.from_main(lambda: _read_state(folder, internals.hooks.where_is))
    # Hugging Face's checkpoints store no other arguments as JSON than those in the TrainerState.
    of_state = {name: getattr(state, name) for name in _INTERVALS}
    if state.train_batch_size is not None:
        of_state["per_device_train_batch_size"] = state.train_batch_size
    _compare_arguments(trainer, folder, arguments or of_state)
    return state, arguments


_INTERVALS = ("logging_steps", "eval_steps", "save_steps")


def load_callback_states(trainer: Trainer) -> None:
    """Restores the callbacks' states, which the TrainerState holds by class name.

    If `restore_callback_states_from_checkpoint` is True, the callbacks' arguments and the control are restored too. If
    the argument is None, only other attributes of the callbacks are restored, such as counters.
    """
    restores = trainer.args.restore_callback_states_from_checkpoint
    if restores is False:
        return
    callbacks, not_found = trainer.callback_handler.callbacks, []
    for name, stored in trainer.state.stateful_callbacks.items():
        states = stored if isinstance(stored, list) else [stored]
        if name == type(trainer.control).__name__:
            if restores:
                trainer.control = type(trainer.control).from_state(states[0])
            continue
        restored = [callback for callback in callbacks if type(callback).__name__ == name]
        if not restored:
            not_found.append(name)
        for callback, state in zip(restored, states, strict=False):
            if restores:
                vars(callback).update(vars(type(callback)(**state.get("args", {}))))
            vars(callback).update(state.get("attributes", {}))
    if not_found:
        log.warning(
            "the checkpoint's state is ignored for callbacks that this run does not have: %s", ", ".join(not_found)
        )


def _read_state(folder: Path, where_is: Callable[[str], str]) -> tuple[TrainerState, dict[str, Any]]:
    """Returns a checkpoint's TrainerState, and the arguments of the run that wrote it."""
    if not files.holds_optimizer(folder) and files.holds_model(folder):
        raise ValueError(
            f"{folder.name} holds only a model, because of save_only_model: training cannot continue from it. Load its "
            "weights into the model and start a new run"
        )
    path = folder / files.STATE
    if not path.is_file():
        raise CheckpointCorrupt(f"{folder.name}: {files.STATE} is missing")
    state = TrainerState.load_from_json(path)
    if state.best_model_checkpoint:
        state.best_model_checkpoint = where_is(state.best_model_checkpoint)
    if state.best_model_checkpoint and not Path(state.best_model_checkpoint).is_dir():
        log.warning("the best checkpoint %s no longer exists and is not used", state.best_model_checkpoint)
        state.best_model_checkpoint = None
    return state, _read_arguments(folder)


def _read_arguments(folder: Path) -> dict[str, Any]:
    """Returns the arguments of the run that wrote a checkpoint, or an empty dict if they are not stored as JSON."""
    path = folder / files.ARGUMENTS
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}  # type: ignore[no-any-return]


def load_weights(trainer: Trainer, resume_from_checkpoint: str, model: nn.Module | None = None) -> None:
    strategy = trainer._footplate.strategy
    with strategy.readable_folder(Path(resume_from_checkpoint), lambda name: not files.is_optimizer(name)) as folder:
        strategy.load_weights(trainer.model if model is None else model, folder)


def load_optimizer(trainer: Trainer, checkpoint: str | None) -> None:
    """Restores the optimizer's state and the schedule's position. Does nothing if `checkpoint` is None.

    Learning rates come from this run's arguments.
    """
    if checkpoint is None:
        return
    folder, strategy, scheduler = Path(checkpoint), trainer._footplate.strategy, trainer.lr_scheduler
    optimizer = strategy.plain_optimizer(trainer.optimizer)
    with strategy.readable_folder(folder, files.is_optimizer) as here:
        stored = strategy.stored_optimizer(optimizer, here)
    schedule = strategy.peers.from_main(lambda: files.load_tensors(folder, files.SCHEDULER))
    if strategy.scale is not None and strategy.peers.from_main((folder / files.SCALER).exists):
        scale = strategy.peers.from_main(lambda: files.load_tensors(folder, files.SCALER))
        strategy.scale.scaler.load_state_dict(scale)
    if not (trainer._footplate.made_schedule and isinstance(scheduler, LambdaLR)):
        strategy.load_optimizer(optimizer, stored)
        scheduler.load_state_dict(schedule)
        return
    strategy.load_optimizer(optimizer, {"state": stored["state"], "param_groups": _options_of(optimizer, stored)})
    scheduler.last_epoch = schedule["last_epoch"]
    scheduler._step_count = schedule["_step_count"]
    rates = zip(scheduler.base_lrs, scheduler.lr_lambdas, strict=True)
    scheduler._last_lr = [base * shape(scheduler.last_epoch) for base, shape in rates]
    for group, rate in zip(optimizer.param_groups, scheduler._last_lr, strict=True):
        group["lr"] = rate


def averaging_optimizer(folder: Path) -> Callable[..., Any] | None:
    """Returns the class of the schedule-free optimizer that a checkpoint was trained with, or None for any other."""
    return SCHEDULE_FREE.get(str(_read_arguments(folder).get("optim"))) if files.holds_optimizer(folder) else None


def is_averaged(folder: Path) -> bool:
    """Returns False if a checkpoint has the weights of a schedule-free training, and another set is their average."""
    if (folder / files.ARGUMENTS).is_file():
        return not _read_arguments(folder).get(NOT_AVERAGED)
    return not _holds_state_of_training(folder / files.OPTIMIZER)


def _holds_state_of_training(optimizer: Path) -> bool:
    """Reads the optimizer of a checkpoint of transformers' own Trainer, which does not store NOT_AVERAGED."""
    if not optimizer.is_file():
        return False
    try:
        # Only the groups are read. The tensors stay on the disk.
        state = torch.load(optimizer, map_location="cpu", weights_only=True, mmap=True)
    except (UnpicklingError, RuntimeError):
        # The weights can be used without a state that cannot be read.
        return False
    return _is_in_training(state.get("param_groups", ()))


def _is_in_training(groups: Sequence[dict[str, Any]]) -> bool:
    """Returns True for the groups of a schedule-free optimizer while the model has the weights of training.

    Only schedule-free optimizers, also those of the package `schedulefree`, have `train_mode` in their groups.
    """
    return any(group.get("train_mode") for group in groups)


def average_weights(trainer: Trainer, model: Any, folder: Path) -> str | None:
    """Averages the model's weights, which were loaded from this checkpoint, if it holds those of training.

    Returns the reason if that is impossible. Does nothing for a checkpoint whose optimizer does not average, or that
    was saved at the step of an evaluation.
    """
    strategy = trainer._footplate.strategy
    kind, has_average = strategy.peers.from_main(lambda: (averaging_optimizer(folder), is_averaged(folder)))
    if kind is None:
        return None if has_average else "this needs one optimizer, named by `optim`, and its saved state"
    if not strategy.holds_whole:
        return None if has_average else f"{type(strategy).__name__} shards the model over the processes"
    optimizer = kind(parameter_groups(model, trainer.get_decay_parameter_names(model), 0.0))
    try:
        with strategy.readable_folder(folder, files.is_optimizer) as here:
            # The state has the coefficients, the steps z, and whether the weights were those of training.
            optimizer.load_state_dict(strategy.stored_optimizer(optimizer, here))
    except (ValueError, KeyError) as error:
        return f"its optimizer has other parameters: {error}"
    optimizer.eval()
    return None


def _options_of(optimizer: Optimizer, stored: dict[str, Any]) -> list[dict[str, Any]]:
    """Returns parameter groups to load: options such as the learning rate are this optimizer's, not the stored ones.

    The stored numbers of the parameters are kept, and stored values that the optimizer computes, such as its step.
    """
    groups = stored["param_groups"]
    if len(groups) != len(optimizer.param_groups):
        raise ValueError("the checkpoint's optimizer has other parameter groups: it belongs to another model")
    options = _option_names(optimizer)
    return [
        {**group, **{name: value for name, value in stored_group.items() if name not in options}}
        for group, stored_group in zip(optimizer.param_groups, groups, strict=True)
    ]


def _option_names(optimizer: Optimizer) -> set[str]:
    """Returns the keys of a parameter group that are options of the optimizer, and not values that it computes.

    Schedule-free optimizers and Prodigy, for example, store their number of steps in each group. Options are the
    arguments of the constructors of the optimizer's class and its base classes.
    """
    names = {"lr", "initial_lr"}
    for base in type(optimizer).__mro__:
        with suppress(KeyError, TypeError, ValueError):  # a constructor that is written in C may have no signature
            names.update(inspect.signature(vars(base)["__init__"]).parameters)
    return names - {"params"}


def stored_rng(folder: Path, peers: OneProcess) -> dict[str, Any]:
    """Returns this process's random state of a checkpoint, which `set_rng_state` restores.

    It is read before training starts, so that a broken file is found then. Under `places` it has the position in the
    data, and the state of the data's generators when the epoch was opened, before a batch was read ahead.
    """
    states = peers.from_main(lambda: files.rng_states(folder))
    if len(states) != peers.world:
        log.warning(
            "%s was written by %d processes and is continued by %d: the data continues at the same sample, but "
            "random draws, such as dropout, will differ",
            folder.name,
            len(states),
            peers.world,
        )
    state = dict(states[peers.rank if len(states) == peers.world else 0])
    if "at" in state.get("places", {}):
        # A process that got no batch in the last round has counted one less, but all continue with the same round.
        state["places"]["at"] = max(other["places"]["at"] for other in states)
    return state


def _compare_arguments(trainer: Trainer, folder: Path, old_args: dict[str, Any]) -> None:
    """Raises ValueError if an argument that must not change on resume has changed. Logs every other change."""
    now = trainer.args.to_dict()
    changes = {name: (old_args[name], now[name]) for name in now if name in old_args and old_args[name] != now[name]}
    changes.pop("output_dir", None)
    for name in _INTERVALS:
        # An interval below 1 is a share of all steps, but the TrainerState stores a number of steps.
        if now[name] is None or now[name] < 1:
            changes.pop(name, None)
    wrong = [name for name in fixed(trainer.args) if name in changes]
    if wrong:
        differences = ", ".join(f"{name} was {changes[name][0]} and is {changes[name][1]}" for name in wrong)
        raise ValueError(
            f"{folder.name} cannot be continued with other values: {differences}. Use the old ones, or start a new "
            "run from its weights; ignore_data_skip=True accepts another order of the data"
        )
    for name, (old, new) in changes.items():
        file = files.STATE if name in (*_INTERVALS, "per_device_train_batch_size") else files.ARGUMENTS
        log.warning("resuming with another %s: %s (from args) != %s (from %s)", name, _plain(new), _plain(old), file)


def _plain(value: Any) -> Any:
    """Converts a whole float such as 10.0 to an int, for log lines."""
    return int(value) if isinstance(value, float) and value.is_integer() else value
