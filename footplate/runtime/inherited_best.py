"""Keeps the best checkpoint of the job from which this job continues, because it may have to be loaded at the end.

The other job may delete that checkpoint, or be deleted itself, while this job trains. So this job makes hard links to
its files, or copies if the store has no hard links.
"""

from __future__ import annotations

import os
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any

from footplate.contract.host.artifacts import AttemptFiles
from footplate.contract.layout import BEST_BEFORE
from footplate.runtime.emit import Emit
from footplate.trainer.callbacks import TrainerCallback
from footplate.trainer.state import TrainerControl, TrainerState


class KeepBest(TrainerCallback):
    """A callback that keeps the inherited best checkpoint in the job's own folder, where later attempts find it."""

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
            shutil.copytree(best, place, copy_function=_linked)
        except (OSError, shutil.Error) as error:
            shutil.rmtree(place, ignore_errors=True)
            self._emit.note(f"the best checkpoint so far, {best.name} of the other job, is missing: {error}")
            return None
        return str(place)


def _linked(source: str, target: str) -> None:
    with suppress(OSError):
        os.link(source, target)
        return
    shutil.copy2(source, target)
