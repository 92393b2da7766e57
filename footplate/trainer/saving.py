"""What of a Trainer goes into a checkpoint, and how it comes back: arguments win, the checkpoint carries progress."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

from footplate.contract.arguments.resuming import fixed
from footplate.contract.errors import CheckpointCorrupt
from footplate.trainer import adapters, held_tensors
from footplate.trainer import checkpoint as files
from footplate.trainer.background import copied
from footplate.trainer.overrides import Shortcut, left_out_by
from footplate.trainer.parts import Parts
from footplate.trainer.state import TrainerState
from footplate.trainer.strategies.peers import Alone

log = logging.getLogger("footplate.trainer")

FAILURES_BORNE = 3
"""Saves in a row that may fail before training gives up: by then it works for nothing."""


@dataclass(frozen=True, slots=True)
class SaveFailed:
    """What `trainer.on_save_failed` gets: training goes on, the older checkpoint stands."""

    step: int
    error: str
    failures_in_a_row: int
    will_go_on: bool


class Saving(Parts):
    """The Trainer's files. What a checkpoint is made of, and how it comes back, stands below."""

    if TYPE_CHECKING:  # of the other parts
        get_total_train_batch_size: Callable[..., int]
        push_to_hub: Callable[..., Any]
        _push_from_checkpoint: Callable[[str], None]
        _get_output_dir: Callable[..., str]
        _trial: Any
        pushes_in_progress: set[Path]

    @left_out_by(Shortcut.PLAIN_SAVE)
    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """The model's weights, with its config and the processor where they can save themselves. With `push_to_hub`
        they go there too, where it is a script that saves."""
        weights = self.strategy.whole_weights(self.model, _internal_call=_internal_call)
        if self.args.should_save:
            folder = Path(output_dir or self.args.output_dir or ".")
            folder.mkdir(parents=True, exist_ok=True)
            with self.strategy.named(self.model):
                self._save(str(folder), **({} if weights is None else {"state_dict": weights}))
        if self.args.push_to_hub and not _internal_call:
            self.push_to_hub(commit_message="Model save")

    @left_out_by(Shortcut.PLAIN_SAVE)
    def _save(self, output_dir: str | None = None, state_dict: dict[str, Any] | None = None) -> None:
        folder = Path(output_dir or self.args.output_dir or ".")
        save_pretrained: Any = getattr(self.model, "save_pretrained", None)
        if save_pretrained is not None:
            with self.strategy.saves_alone(self.model):
                save_pretrained(folder, state_dict=state_dict)
            if adapters.are_in(self.model):
                adapters.save_rest(self.model, folder, state_dict)
        else:
            files.save_weights(self.model, folder / files.MODEL, state_dict)
        self._save_processor(folder)

    def _save_processor(self, folder: Path) -> None:
        processor: Any = self.processing_class or getattr(self.data_collator, "tokenizer", None)
        if hasattr(processor, "save_pretrained"):
            processor.save_pretrained(folder)

    def save_merged_model(self, output_dir: str) -> None:
        """The model with peft's adapters worked into its weights, as if it never had any. Ours keeps them."""
        if not self.strategy.holds_whole:
            raise ValueError(
                f"{type(self.strategy).__name__} has cut the model into pieces, and adapters are merged where all of "
                "it is: save_model here, and save_merged_model in one process that has loaded what it saved"
            )
        if not self.args.should_save:
            return
        whole, folder = adapters.merged(self.model), Path(output_dir)
        folder.mkdir(parents=True, exist_ok=True)
        save_pretrained: Any = getattr(whole, "save_pretrained", None)
        if save_pretrained is not None:
            save_pretrained(folder)
        else:
            files.save_weights(whole, folder / files.MODEL)
        self._save_processor(folder)

    @left_out_by(Shortcut.PLAIN_SAVE)
    def _save_checkpoint(self, model: nn.Module, trial: Any = None) -> files.Checkpoint | None:
        return save(self)

    def _save_or_go_on(self) -> None:
        """A disk that is full ends nothing at once: the older checkpoint stands, and training goes on for a while."""
        if self._background.is_under_way:
            self._finish_save()
        if self.args.save_in_background and saves_plainly(self):
            start_in_background(self)
            self.control.should_save = False
            return
        self._conclude(self.state.global_step, lambda: self._save_checkpoint(self.model, trial=None))

    def _finish_save(self) -> None:
        """Waits for the save that is under way, and tells of it."""
        self._conclude(self._background.step, lambda: let_go(self, self._background.result()))

    def _let_save_finish(self) -> None:
        """Training is raising: what is being written may still be whole, and what went wrong with it is secondary."""
        if self._background.is_under_way:
            try:
                self._finish_save()
            except Exception as error:
                log.warning("the checkpoint of step %d was not written: %s", self._background.step, error)

    def _conclude(self, step: int, saving: Callable[[], files.Checkpoint | None]) -> None:
        try:
            saved = saving()
        except files.CannotSave as error:
            self._failed_saves += 1
            _note_best_that_stands(self)
            go_on = self._failed_saves <= FAILURES_BORNE
            self.control.should_save = False
            self.on_save_failed(SaveFailed(step, str(error), self._failed_saves, go_on))
            if not go_on:
                raise
        else:
            self._failed_saves = 0
            if self.args.push_to_hub and saved is not None:
                self._push_from_checkpoint(str(saved.path))
            self.control = self.callback_handler.on_save(self.args, self.state, self.control, saved)

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: nn.Module | None = None) -> None:
        with self.strategy.brought(Path(resume_from_checkpoint), files.is_no_optimizer) as folder:
            self.strategy.load_weights(model if model is not None else self.model, folder)

    def _load_best_model(self) -> None:
        self._load_from_checkpoint(str(self.state.best_model_checkpoint))


def warn_that_saving_failed(failed: SaveFailed) -> None:
    what_next = "training goes on" if failed.will_go_on else "giving up"
    log.warning("%s (%d in a row): %s", failed.error, failed.failures_in_a_row, what_next)


def save(trainer: Saving) -> files.Checkpoint:
    """Commits a checkpoint of where the trainer stands, then lets go of the oldest.

    What processes have to bring together they bring together before anything is written: a disk that is full in one
    of them leaves none waiting.
    """
    parent = _note_best(trainer)
    step, stamp = trainer.state.global_step, trainer.checkpoint_stamp
    progress = _progress(trainer)

    def write(folder: Path) -> None:
        trainer.save_model(str(folder), _internal_call=True)
        _write_progress(progress, folder)

    def commit(write: Callable[[Path], None] = write) -> files.Checkpoint:
        return let_go(trainer, files.commit(parent, step, write, stamp))

    def follow() -> None:
        trainer.save_model(str(parent / f"checkpoint-{step}"), _internal_call=True)

    if trainer.strategy.writes_shards:
        return trainer.strategy.written_in_pieces(commit, lambda folder: _write_pieces(trainer, progress, folder))
    with trainer.strategy.gathered(trainer.model):
        return trainer.strategy.written(commit, follow)


def _write_pieces(trainer: Saving, progress: dict[str, Any], folder: Path) -> None:
    from footplate.trainer.strategies import shards

    leads = trainer.args.should_save
    shards.write(folder, trainer.model, progress.get(files.OPTIMIZER), leads=leads)
    if leads:
        parts: tuple[Any, ...] = (getattr(trainer.model, "config", None), trainer.processing_class)
        for each in parts:
            if hasattr(each, "save_pretrained"):
                each.save_pretrained(folder)
        _write_progress({name: value for name, value in progress.items() if name != files.OPTIMIZER}, folder)


def start_in_background(trainer: Saving) -> None:
    """Copies all that a checkpoint holds, and lets a thread write it."""
    parent = _note_best(trainer)
    step, stamp = trainer.state.global_step, dict(trainer.checkpoint_stamp)
    weights, progress = copied(adapters.to_copy(trainer.model)), copied(_progress(trainer))

    def write(folder: Path) -> None:
        trainer._save(str(folder), state_dict=weights)
        _write_progress(progress, folder)

    trainer._background.start(step, lambda: files.commit(parent, step, write, stamp))


def saves_plainly(trainer: Saving) -> bool:
    """Whether nothing of saving is overridden: an override may read the model, which moves on while it is written."""
    return trainer._overrides.allow(Shortcut.PLAIN_SAVE)


def _note_best(trainer: Saving) -> Path:
    state, parent = trainer.state, Path(trainer._get_output_dir(trial=trainer._trial))
    best = parent / f"checkpoint-{state.best_global_step}"
    if state.best_global_step and (
        state.best_global_step == state.global_step or trainer.strategy.peers.first(best.exists)
    ):
        state.best_model_checkpoint = str(best)
    return parent


def _note_best_that_stands(trainer: Saving) -> None:
    """A checkpoint that could not be written is nobody's best: the next one is protected, and loaded in the end."""
    state, parent = trainer.state, Path(trainer._get_output_dir(trial=trainer._trial))
    peers = trainer.strategy.peers
    if state.best_model_checkpoint is None or peers.first(Path(state.best_model_checkpoint).is_dir):
        return
    there = peers.first(lambda: best_steps(trainer, parent))
    state.best_model_checkpoint = str(parent / f"checkpoint-{there[0]}") if there else None


def let_go(trainer: Saving, saved: files.Checkpoint) -> files.Checkpoint:
    """Of the oldest, now that this one stands: as many are kept as the arguments say, and those that are needed."""
    args, parent = trainer.args, saved.path.parent
    protect = {saved.path, *trainer.relied_on(), *trainer.pushes_in_progress}
    if trainer.state.best_model_checkpoint is not None:
        protect.add(Path(trainer.state.best_model_checkpoint))
    if args.keep_last is None and args.keep_best is None:
        files.rotate(parent, args.save_total_limit, protect)
        return saved
    protect |= {parent / f"checkpoint-{step}" for step in best_steps(trainer, parent)[: args.keep_best or 0]}
    newest = args.keep_last or args.save_total_limit
    if newest is not None:
        files.keep(parent, newest, protect)
    return saved


def best_steps(trainer: Saving, parent: Path) -> list[int]:
    """Of the checkpoints that are there, best first. What was not evaluated, or is NaN, is not among them."""
    name = str(trainer.args.metric_for_best_model)
    name = name if name.startswith("eval_") else f"eval_{name}"
    values = {each["step"]: each[name] for each in trainer.state.log_history if name in each}
    there = [step for step in values if values[step] == values[step] and (parent / f"checkpoint-{step}").is_dir()]
    return sorted(there, key=values.__getitem__, reverse=bool(trainer.args.greater_is_better))


def _progress(trainer: Saving) -> dict[str, Any]:
    """What a checkpoint holds beside the model, by file."""
    state, args, strategy = trainer.state, trainer.args, trainer.strategy
    state.stateful_callbacks = _callback_states(trainer)
    arguments = {**args.to_dict(), **_company(trainer)}
    told = {files.STATE: state.to_json_string(), files.ARGUMENTS: json.dumps(arguments, indent=2) + "\n"}
    if args.save_only_model:
        return told
    places = {"places": trainer._epoch.places()} if trainer._epoch is not None else {}
    rngs = strategy.peers.everyone({**files.rng_state(), **places})
    held = held_tensors.held(trainer.callback_handler.callbacks)
    return {
        **({held_tensors.FILE: held} if held else {}),
        **({} if strategy.scale is None else {files.SCALER: strategy.scale.state_dict()}),
        files.OPTIMIZER: strategy.optimizer_state(trainer.optimizer),
        files.SCHEDULER: trainer.lr_scheduler.state_dict(),
        **{files.rng_name(rank, len(rngs)): each for rank, each in enumerate(rngs)},
        **told,
    }


def _write_progress(progress: dict[str, Any], folder: Path) -> None:
    for name, value in progress.items():
        if isinstance(value, str):
            (folder / name).write_text(value, encoding="utf-8")
        else:
            files.save_tensors(value, folder / name)


def _callback_states(trainer: Saving) -> dict[str, Any]:
    """By class name; a list where a class is there more than once, as the reference has it."""
    states: dict[str, Any] = {}
    for each in (*trainer.callback_handler.callbacks, trainer.control):
        if not hasattr(each, "state"):
            continue
        name = type(each).__name__
        if name not in states:
            states[name] = each.state()
        elif isinstance(states[name], list):
            states[name].append(each.state())
        else:
            states[name] = [states[name], each.state()]
    return states


def find(trainer: Saving, asked: str | Path | bool | None) -> Path | None:
    """The folder to continue from, verified, with True meaning the newest complete one in output_dir.

    The main process finds and verifies it; what a save that died has left behind goes before.
    """
    peers, parent = trainer.strategy.peers, Path(trainer.args.output_dir or ".")
    if trainer.args.should_save:
        files.sweep(parent)
    return peers.first(lambda: _find(parent, asked))


def _find(parent: Path, asked: str | Path | bool | None) -> Path | None:
    if asked is None or asked is False:
        return None
    if asked is True:
        newest = files.latest_checkpoint(parent)
        if newest is None:
            raise ValueError(f"no complete checkpoint in {parent} to resume from")
        return newest
    folder = Path(asked)
    if isinstance(asked, files.Verified):
        return folder
    if not folder.is_dir():
        raise ValueError(f"no checkpoint to resume from: {folder} is not a folder")
    if (folder / files.MANIFEST).exists() or not (folder / files.STATE).exists():
        files.verify(folder)
    else:
        log.warning("%s has no manifest, so it was not made by us: it is loaded unverified", folder)
    return folder


def load_state(trainer: Saving, folder: Path) -> TrainerState:
    """Progress from the checkpoint; every interval and limit from the arguments."""
    state, arguments = trainer.strategy.peers.first(lambda: _read_state(folder, trainer.where_is))
    if arguments is not None:
        _compare_arguments(trainer, folder, arguments)
    if not trainer.args.restore_callback_states_from_checkpoint:
        return state
    stored = {name: list(_as_list(value)) for name, value in state.stateful_callbacks.items()}
    for callback in trainer.callback_handler.callbacks:
        mine = stored.get(type(callback).__name__)
        if mine and hasattr(callback, "state"):
            vars(callback).update(mine.pop(0)["attributes"])
    held_tensors.restore(
        trainer.callback_handler.callbacks, trainer.strategy.peers.first(lambda: held_tensors.read(folder))
    )
    return state


def _read_state(folder: Path, where_is: Callable[[str], str]) -> tuple[TrainerState, dict[str, Any] | None]:
    """And with which arguments it was made."""
    if not files.holds_optimizer(folder) and files.holds_model(folder):
        raise ValueError(
            f"{folder.name} holds a model only, as save_only_model asked for: nothing can continue from it. Load its "
            "weights into the model and start anew"
        )
    path = folder / files.STATE
    if not path.is_file():
        raise CheckpointCorrupt(f"{folder.name}: {files.STATE} is missing")
    state = TrainerState.load_from_json(path)
    if state.best_model_checkpoint:
        state.best_model_checkpoint = where_is(state.best_model_checkpoint)
    if state.best_model_checkpoint and not Path(state.best_model_checkpoint).is_dir():
        log.warning("the best checkpoint %s is gone, and forgotten", state.best_model_checkpoint)
        state.best_model_checkpoint = None
    arguments = folder / files.ARGUMENTS
    return state, json.loads(arguments.read_text(encoding="utf-8")) if arguments.is_file() else None


def load_optimizer(trainer: Saving, folder: Path) -> None:
    """Moments and steps come back; rates and decays stay what the arguments say."""
    strategy, scheduler = trainer.strategy, trainer.lr_scheduler
    optimizer = strategy.plain_optimizer(trainer.optimizer)
    with strategy.brought(folder, files.is_optimizer) as here:
        stored = strategy.stored_optimizer(optimizer, here)
    schedule, scale = strategy.peers.first(lambda: _read_schedule(folder))
    if strategy.scale is not None and scale is not None:
        strategy.scale.load_state_dict(scale)
    if not (trainer.made_schedule and isinstance(scheduler, LambdaLR)):
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


def _read_schedule(folder: Path) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """And the loss scale, where there is one."""
    scale = files.load_tensors(folder, files.SCALER) if (folder / files.SCALER).exists() else None
    return files.load_tensors(folder, files.SCHEDULER), scale


def _options_of(optimizer: Optimizer, stored: dict[str, Any]) -> list[dict[str, Any]]:
    """This optimizer's options over the stored groups' parameters, which are numbers."""
    if len(stored["param_groups"]) != len(optimizer.param_groups):
        raise ValueError("the checkpoint's optimizer has other groups of parameters: it is of another model")
    return [
        {**mine, "params": theirs["params"]}
        for mine, theirs in zip(optimizer.param_groups, stored["param_groups"], strict=True)
    ]


class StoredRng:
    """Read at once, so that a missing or broken file is told before training starts."""

    def __init__(self, folder: Path, peers: Alone) -> None:
        states = peers.first(lambda: files.rng_states(folder))
        if len(states) != peers.world:
            log.warning(
                "%s was written by %d processes and is continued by %d: the data goes on where it was, and what is "
                "drawn at random, such as dropout, is another",
                folder.name,
                len(states),
                peers.world,
            )
        self._state = dict(states[peers.rank if len(states) == peers.world else 0])
        self.places: dict[str, Any] = self._state.pop("places", {})
        """Where the generators stood as the epoch was opened, and before a batch was read ahead."""

    def restore(self) -> None:
        files.set_rng_state(self._state)


def _company(trainer: Saving) -> dict[str, int]:
    """Beside the arguments: where in the data a step is, however many processes make it."""
    samples = trainer.get_total_train_batch_size(trainer.args)
    return {"world_size": trainer.strategy.peers.world, "samples_per_step": samples}


def _compare_arguments(trainer: Saving, folder: Path, then: dict[str, Any]) -> None:
    now, company = trainer.args.to_dict(), _company(trainer)
    changes = {name: (then[name], now[name]) for name in now if name in then and then[name] != now[name]}
    if then.get("world_size", 1) != company["world_size"]:
        # As many samples in a step, cut in another way, are at the same place in the data.
        changes.pop("per_device_train_batch_size", None)
        changes.pop("gradient_accumulation_steps", None)
        before = then.get("samples_per_step", company["samples_per_step"])
        if before != company["samples_per_step"] and not trainer.args.ignore_data_skip:
            raise ValueError(
                f"{folder.name} was written by {then.get('world_size', 1)} processes, whose steps had "
                f"{before} samples, and this run's {company['world_size']} make steps of "
                f"{company['samples_per_step']}: change per_device_train_batch_size or gradient_accumulation_steps, or "
                "set ignore_data_skip=True to begin the epoch's data anew"
            )
    changes.pop("output_dir", None)
    wrong = [name for name in fixed(trainer.args) if name in changes]
    if wrong:
        said = ", ".join(f"{name} was {changes[name][0]} and is {changes[name][1]}" for name in wrong)
        raise ValueError(
            f"{folder.name} cannot be continued with other values: {said}. Give the old ones, or start from its "
            "weights alone; ignore_data_skip=True accepts another order of the data"
        )
    for name, (old, new) in changes.items():
        log.warning("resuming with another %s: %s instead of %s", name, new, old)


def _as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]
