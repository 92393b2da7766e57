"""Switches of the protections around checkpoints."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from tests.faults.off import switch


@switch("a save is renamed into place", module="footplate.trainer.checkpoint")
def save_in_place(checkpoint: Any) -> None:
    """A save stands under its final name from its first byte on."""

    def commit(parent: Path, step: int, write: Any, stamp: dict[str, Any]) -> Any:
        final = parent / f"checkpoint-{step}"
        shutil.rmtree(final, ignore_errors=True)
        final.mkdir(parents=True)
        write(final)
        return checkpoint.seal(final, step, stamp)

    checkpoint.commit = commit


@switch("a checkpoint is verified", module="footplate.trainer.checkpoint")
def believe_what_is_there(checkpoint: Any) -> None:
    """A folder with the right name is a checkpoint."""

    def verify(folder: str | Path, manifest_sha256: str | None = None) -> dict[str, Any]:
        try:
            return dict(json.loads((Path(folder) / checkpoint.MANIFEST).read_bytes()))
        except (OSError, ValueError):
            return {"files": {}}

    checkpoint.verify = verify


@switch("a torn save is never taken for a checkpoint", module="footplate.trainer.checkpoint")
def take_what_comes(checkpoint: Any) -> None:
    """The two above together: each of them alone keeps a resume from a torn save."""
    save_in_place(checkpoint)
    believe_what_is_there(checkpoint)


@switch("what was found corrupt is offered again", module="service.store.checkpoints")
def forget_the_corrupt(checkpoints: Any) -> None:
    """Forgets corrupt checkpoints, as if the job had never had them."""
    checkpoints._OFFERS = checkpoints._OF_JOB.where(checkpoints.checkpoints.c.status == checkpoints.COMMITTED)


@switch("a save that failed is borne", module="footplate.trainer.saving")
def bear_nothing(saving: Any) -> None:
    saving.MAX_FAILED_SAVES = 0


@switch("failed saves are counted", module="footplate.trainer.saving")
def bear_everything(saving: Any) -> None:
    saving.MAX_FAILED_SAVES = 1_000_000
