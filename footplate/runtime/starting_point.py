"""Finds the starting point of an attempt: step 0, the job's newest valid checkpoint, or the spec's `resume_from`.

A job that has a checkpoint of its own always continues from that, even if its spec has `resume_from`.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from footplate.components.st_trainers import is_encoder, load_encoder
from footplate.contract.errors import CheckpointCorrupt, NotBuildable, NoValidCheckpoint
from footplate.contract.host.artifacts import AttemptFiles
from footplate.contract.host.launch import Order
from footplate.contract.layout import BEST_BEFORE
from footplate.contract.messages import CheckpointOffer
from footplate.contract.spec import JobSpec
from footplate.runtime.emit import Emit
from footplate.trainer.callbacks import TrainerCallback
from footplate.trainer.checkpoint import MANIFEST, STATE, Verified, verify
from footplate.trainer.resuming import average_weights, is_averaged
from footplate.trainer.state import TrainerControl, TrainerState
from footplate.trainer.trainer import Trainer


@dataclass(frozen=True, slots=True)
class StartingPoint:
    """The folder of a checkpoint to start from."""

    folder: str
    weights_only: bool = False
    """True if only the weights are loaded, and training starts at step 0."""
    is_own: bool = False
    """True if the checkpoint is from an earlier attempt of the same job."""

    def load(self, trainer: Trainer, note: Callable[[str], None]) -> str | None:
        """Returns the folder for `trainer.train(resume_from_checkpoint=…)`, or loads the weights and returns None.

        `note` is called if the weights had to be averaged, and cannot be.
        """
        if not self.weights_only:
            return self.folder
        if trainer.model_init is not None:
            self._load_into_next_model(trainer, note)
        elif is_encoder(trainer.model):
            load_encoder(trainer.model, Path(self.folder))
        else:
            self._load_weights(trainer, trainer.model, note)
        return None

    def _load_weights(self, trainer: Any, model: Any, note: Callable[[str], None]) -> None:
        trainer._load_from_checkpoint(self.folder, model)
        folder = Path(self.folder)
        if isinstance(trainer, Trainer):
            why = average_weights(trainer, model, folder)
        else:
            # A script may have transformers' own Trainer.
            why = None if is_averaged(folder) else "transformers' own Trainer cannot average them"
        if why is not None and trainer.is_world_process_zero():
            note(
                f"the weights of {folder.name} are those of a schedule-free training, not their average, because {why}."
                " A checkpoint that is saved at the step of an evaluation has the average"
            )

    def _load_into_next_model(self, trainer: Any, note: Callable[[str], None]) -> None:
        """Loads the weights into the model that the next `train()` makes by `model_init`, and into no later one."""

        def call_model_init(trial: Any = None) -> Any:
            del trainer.call_model_init
            model = trainer.call_model_init(trial)
            self._load_weights(trainer, model, note)
            return model

        trainer.call_model_init = call_model_init


def load_checkpoint(spec: JobSpec, trainer: Trainer, order: Order, emit: Emit) -> None:
    """Loads the checkpoint of a job that does not train. The spec names the checkpoint in `resume_from`."""
    start = emit.peers.from_main(lambda: find_starting_point(spec, order, emit))
    assert start is not None
    start.load(trainer, emit.note)


def find_starting_point(spec: JobSpec, order: Order, emit: Emit) -> StartingPoint | None:
    """Returns the starting point, or None for step 0. Raises NoValidCheckpoint if the checkpoint cannot be used."""
    own_offers = [offer for offer in order.checkpoints if offer.of is None]
    if own_offers:
        return StartingPoint(newest_valid(own_offers, order, emit), is_own=True)
    source = spec.resume_from
    if source is None:
        cause = " again: no attempt before this one has committed a checkpoint" if order.attempt > 1 else ""
        emit.note(f"starts at step 0{cause or ': the job has no checkpoint'}")
        return None
    weights_only = source.mode == "weights" or (spec.data.train is None and spec.loop is None)
    if source.path is not None:
        return _folder(source.path, order, emit, weights_only=weights_only)
    for offer in order.checkpoints:
        return _of_another_job(offer, order, emit, weights_only=weights_only)
    raise NoValidCheckpoint(
        f"checkpoint {source.checkpoint}, from which this job starts, is gone: job {source.job} was deleted",
        hint="submit a new job with another resume_from, or without one",
    )


def newest_valid(offers: list[CheckpointOffer], order: Order, emit: Emit) -> Verified:
    """Returns the newest of these checkpoints that verifies, and reports those that do not.

    Raises NoValidCheckpoint if none verifies.
    """
    for offer in offers:
        try:
            folder = order.files.existing(offer.path)
            verify(folder, offer.manifest_sha256)
        except CheckpointCorrupt as error:
            emit.report_checkpoint("corrupt", offer, error.message)
            continue
        if offer.was_corrupt:
            emit.report_checkpoint("healed", offer, "the checkpoint was corrupt, and is valid again")
        emit.note(f"continues at step {offer.step}", step=offer.step, checkpoint=offer.path)
        return Verified(folder)
    raise NoValidCheckpoint(
        f"none of the job's {len(offers)} checkpoints is valid",
        hint="the job's checkpoint events say why. A new job starts from step 0",
    )


def _of_another_job(offer: CheckpointOffer, order: Order, emit: Emit, *, weights_only: bool) -> StartingPoint:
    """Returns another job's checkpoint as the starting point. Raises NoValidCheckpoint if the checkpoint is corrupt."""
    origin = f"of job {offer.of} at step {offer.step}"
    try:
        folder = order.files.existing(offer.path)
        verify(folder, offer.manifest_sha256)
    except CheckpointCorrupt as error:
        raise NoValidCheckpoint(
            f"the checkpoint {origin}, from which this job starts, cannot be used: {error.message}",
            hint="fork that job again from another checkpoint, or name another one in resume_from",
        ) from error
    emit.note(_sentence(origin, weights_only=weights_only), job=offer.of, checkpoint=offer.path)
    return StartingPoint(Verified(folder), weights_only)


def _folder(path: str, order: Order, emit: Emit, *, weights_only: bool) -> StartingPoint:
    """Returns a folder such as `models://a` as the starting point. Only a folder with a manifest is verified."""
    folder = Path(order.roots.resolve(path))
    if not folder.is_dir():
        raise NotBuildable(f"{path} is a file, and a checkpoint is a folder", hint="name the folder of the file")
    checkpoint: str = str(folder)
    if (folder / MANIFEST).exists():
        verify(folder)
        checkpoint = Verified(folder)
    elif not weights_only and not (folder / STATE).exists():
        raise NotBuildable(
            f"{path} has no {STATE}, so training cannot continue from it",
            hint='load its weights only, with "mode": "weights", or name it as the path of the model',
        )
    emit.note(_sentence(f"in {path}", weights_only=weights_only), checkpoint=path)
    return StartingPoint(checkpoint, weights_only)


def _sentence(where: str, *, weights_only: bool) -> str:
    return (
        f"loads the weights {where}, and starts at step 0" if weights_only else f"continues from the checkpoint {where}"
    )


class KeepBest(TrainerCallback):
    """A callback that copies the best checkpoint of another job, from which this job continues, to this job's folder.

    The best checkpoint may be loaded at this job's end, when the other job may have deleted it. The copies are hard
    links if the file system supports them. Later attempts of this job find the copies in this job's folder.
    """

    def __init__(self, files: AttemptFiles, emit: Emit) -> None:
        self._files, self._emit = files, emit

    def on_train_begin(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        best = state.best_model_checkpoint
        if best is None or not args.load_best_model_at_end:
            return
        state.best_model_checkpoint = self._emit.peers.from_main(lambda: self._copied(Path(best)))

    def _copied(self, best: Path) -> str | None:
        place = self._files.folder / BEST_BEFORE / best.name
        try:
            shutil.copytree(best, place, copy_function=link_or_copy)
        except (OSError, shutil.Error) as error:
            shutil.rmtree(place, ignore_errors=True)
            self._emit.note(f"the other job's best checkpoint, {best.name}, cannot be copied and is not used: {error}")
            return None
        return str(place)


def link_or_copy(source: str | Path, target: str | Path) -> None:
    """Makes a hard link. Copies the file if that is impossible, for example on another file system."""
    with suppress(OSError):
        os.link(source, target)
        return
    shutil.copy2(source, target)
