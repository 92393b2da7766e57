"""Restores a run from a checkpoint: finds and verifies it, compares the arguments, and loads its states."""

from __future__ import annotations

import inspect
import json
import logging
from collections.abc import Callable
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
from footplate.trainer import checkpoint as files
from footplate.trainer.optimizers.groups import parameter_groups
from footplate.trainer.optimizers.schedule_free import SCHEDULE_FREE, is_in_training
from footplate.trainer.saving import NOT_AVERAGED
from footplate.trainer.state import TrainerState
from footplate.trainer.strategies.peers import OneProcess

if TYPE_CHECKING:
    from footplate.trainer.trainer import Trainer

log = logging.getLogger("footplate.trainer")


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
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}


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
    with strategy.readable_folder(folder, files.is_optimizer) as readable_folder:
        stored = strategy.stored_optimizer(optimizer, readable_folder)
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
    return is_in_training(state.get("param_groups", ()))


def average_weights(trainer: Trainer, model: Any, folder: Path) -> str | None:
    """Replaces the training weights that a schedule-free optimizer saved in this checkpoint by the averaged weights.

    Returns the reason if that is impossible. Does nothing if the optimizer does not average, or if the checkpoint
    was saved at the step of an evaluation and so has the average.
    """
    strategy = trainer._footplate.strategy
    kind, has_average = strategy.peers.from_main(lambda: (averaging_optimizer(folder), is_averaged(folder)))
    if kind is None:
        return None if has_average else "this needs one optimizer, named by `optim`, and its saved state"
    if not strategy.holds_whole:
        return None if has_average else f"{type(strategy).__name__} shards the model over the processes"
    optimizer = kind(parameter_groups(model, trainer.get_decay_parameter_names(model), 0.0))
    try:
        with strategy.readable_folder(folder, files.is_optimizer) as readable_folder:
            # The state has the coefficients, the steps z, and whether the weights were those of training.
            optimizer.load_state_dict(strategy.stored_optimizer(optimizer, readable_folder))
    except (ValueError, KeyError) as error:
        return f"its optimizer has other parameters: {error}"
    optimizer.eval()
    return None


def _options_of(optimizer: Optimizer, stored: dict[str, Any]) -> list[dict[str, Any]]:
    """Returns the checkpoint's parameter groups with the options of this optimizer, such as its learning rate.

    All other values are the stored ones: the indices of the parameters, and what an optimizer computes, such as its
    step.
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

    It is read before training starts, so that a broken file is found then. `places` holds the position in the data. It
    also holds the state of the data's generators when the epoch was opened, before a batch was read ahead.
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
        state["places"]["at"] = max(rank_state["places"]["at"] for rank_state in states)
    return state


def _compare_arguments(trainer: Trainer, folder: Path, old_args: dict[str, Any]) -> None:
    """Raises ValueError if an argument that must not change on resume has changed. Logs every other change."""
    args = trainer.args.to_dict()
    changes = {name: (old_args[name], args[name]) for name in args if name in old_args and old_args[name] != args[name]}
    changes.pop("output_dir", None)
    for name in _INTERVALS:
        # An interval below 1 is a share of all steps, but the TrainerState stores a number of steps.
        if args[name] is None or args[name] < 1:
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
