"""Where an attempt begins: at step 0, at its job's newest checkpoint that verifies, or where its spec says.

A job that has a checkpoint of its own continues from that, wherever it has come from.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from footplate.contract.errors import CheckpointCorrupt, NotBuildable, NoValidCheckpoint
from footplate.contract.host.launch import Order
from footplate.contract.messages import CheckpointOffer
from footplate.contract.spec import JobSpec
from footplate.runtime.emit import Emit
from footplate.trainer.checkpoint import MANIFEST, STATE, Verified, verify
from footplate.trainer.trainer import Trainer


@dataclass(frozen=True, slots=True)
class Beginning:
    """A folder, and what of it is taken."""

    folder: str
    weights_only: bool = False
    is_own: bool = False
    """An earlier attempt's of this very job."""

    def of(self, trainer: Trainer) -> str | None:
        """For `trainer.train(resume_from_checkpoint=…)`; weights alone are in the model then."""
        if not self.weights_only:
            return self.folder
        trainer._load_from_checkpoint(self.folder)
        return None


def begin_loop(spec: JobSpec, order: Order, emit: Emit) -> str | None:
    """For a loop of a user's own, which takes of the folder what it wants."""
    found = beginning(spec, order, emit)
    return None if found is None else found.folder


def beginning(spec: JobSpec, order: Order, emit: Emit) -> Beginning | None:
    """None: step 0. NoValidCheckpoint where there was one to begin with, and it cannot be used."""
    own = [offer for offer in order.checkpoints if offer.of is None]
    if own:
        return Beginning(newest_valid(own, order, emit), is_own=True)
    wanted = spec.resume_from
    if wanted is None:
        again = " again: no attempt before this one has committed a checkpoint" if order.attempt > 1 else ""
        emit.note(f"starts at step 0{again or ': the job has no checkpoint'}")
        return None
    weights_only = wanted.mode == "weights" or (spec.data.train is None and spec.loop is None)
    if wanted.path is not None:
        return _folder(wanted.path, order, emit, weights_only=weights_only)
    for offer in order.checkpoints:
        return _another_s(offer, order, emit, weights_only=weights_only)
    raise NoValidCheckpoint(
        f"checkpoint {wanted.checkpoint}, from which this job starts, is gone: job {wanted.job} was deleted",
        hint="nothing is left of it to start from; a new job with another resume_from, or none, starts",
    )


def newest_valid(offers: list[CheckpointOffer], order: Order, emit: Emit) -> Verified:
    """Returns the newest of these checkpoints that verifies, and reports each that does not. Raises if none does."""
    for offer in offers:
        try:
            folder = order.files.existing(offer.path)
            verify(folder, offer.manifest_sha256)
        except CheckpointCorrupt as error:
            emit.found("corrupt", offer, error.message)
            continue
        if offer.was_corrupt:
            emit.found("healed", offer, "it was corrupt, and verifies again")
        emit.note(f"continues at step {offer.step}", checkpoint=offer.path)
        return Verified(folder)
    raise NoValidCheckpoint(
        f"none of the job's {len(offers)} checkpoints verifies",
        hint="its checkpoint events say what is wrong with each; a new job starts from step 0",
    )


def _another_s(offer: CheckpointOffer, order: Order, emit: Emit, *, weights_only: bool) -> Beginning:
    """Another job's: no event of ours may say of it what only that job knows."""
    whose = f"of job {offer.of} at step {offer.step}"
    try:
        folder = order.files.existing(offer.path)
        verify(folder, offer.manifest_sha256)
    except CheckpointCorrupt as error:
        raise NoValidCheckpoint(
            f"the checkpoint {whose}, from which this job starts, cannot be used: {error.message}",
            hint="its job may have others: fork that again, or name another one in resume_from",
        ) from error
    emit.note(_sentence(whose, weights_only=weights_only), job=offer.of, checkpoint=offer.path)
    return Beginning(Verified(folder), weights_only)


def _folder(path: str, order: Order, emit: Emit, *, weights_only: bool) -> Beginning:
    """A folder under a root, which nobody vouches for unless it has a manifest of ours."""
    folder = Path(order.roots.resolve(path))
    if not folder.is_dir():
        raise NotBuildable(f"{path} is a file, and a checkpoint is a folder", hint="name the folder that it lies in")
    found: str = str(folder)
    if (folder / MANIFEST).exists():
        verify(folder)
        found = Verified(folder)
    elif not weights_only and not (folder / STATE).exists():
        raise NotBuildable(
            f"{path} holds no {STATE}, so no Trainer can go on from it",
            hint='take its weights alone, "mode": "weights", or name it as the path of the model',
        )
    emit.note(_sentence(f"in {path}", weights_only=weights_only), checkpoint=path)
    return Beginning(found, weights_only)


def _sentence(where: str, *, weights_only: bool) -> str:
    return (
        f"takes the weights {where}, and starts at step 0" if weights_only else f"continues from the checkpoint {where}"
    )
