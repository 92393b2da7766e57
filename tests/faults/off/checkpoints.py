"""Switches of the protections around checkpoints."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from tests.faults.off import switch


@switch("a save is renamed into place", module="footplate.trainer.checkpoint")
def save_in_place(checkpoint: Any) -> None:
    """Writes a save under its final name from its first byte on."""

    def commit(parent: Path, step: int, write: Any, stamp: dict[str, Any]) -> Any:
        final = parent / f"checkpoint-{step}"
        shutil.rmtree(final, ignore_errors=True)
        final.mkdir(parents=True)
        write(final)
        return checkpoint.seal(final, step, stamp)

    checkpoint.commit = commit


@switch("a checkpoint is verified", module="footplate.trainer.checkpoint")
def accept_without_verification(checkpoint: Any) -> None:
    """Accepts every folder with the right name as a checkpoint."""

    def verify(folder: str | Path, manifest_sha256: str | None = None) -> dict[str, Any]:
        try:
            return dict(json.loads((Path(folder) / checkpoint.MANIFEST).read_bytes()))
        except (OSError, ValueError):
            return {"files": {}}

    checkpoint.verify = verify


@switch("a torn save is not a checkpoint", module="footplate.trainer.checkpoint")
def accept_torn_saves(checkpoint: Any) -> None:
    """Turns off both protections above, because either of them prevents a resume from a torn save."""
    save_in_place(checkpoint)
    accept_without_verification(checkpoint)


@switch("a corrupt checkpoint is still offered", module="service.store.checkpoints")
def offer_no_corrupt_checkpoints(checkpoints: Any) -> None:
    """Offers a job only its committed checkpoints, as if it had never had corrupt checkpoints."""
    checkpoints._OFFERS = checkpoints._OF_JOB.where(checkpoints.checkpoints.c.status == checkpoints.COMMITTED)


@switch("a failed save is tolerated", module="footplate.trainer.saving")
def tolerate_no_failed_save(saving: Any) -> None:
    saving.MAX_FAILED_SAVES = 0


@switch("failed saves are counted", module="footplate.trainer.saving")
def tolerate_all_failed_saves(saving: Any) -> None:
    saving.MAX_FAILED_SAVES = 1_000_000
