"""The artifact store as an attempt uses it: one folder to write to, and other paths that must stay inside the store."""

from __future__ import annotations

import os
import threading
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from footplate.contract import layout
from footplate.contract.bucket import RemoteStore, StoreUnreachable
from footplate.contract.errors import CheckpointCorrupt
from footplate.contract.ids import JobId, NodeId


def store_trouble(root: Path) -> str | None:
    """Returns the reason for which no attempt could use the artifact store, as a sentence. None if it could."""
    probe = root / layout.PROBE
    try:
        with probe.open("rb"):
            pass
    except FileNotFoundError:
        return f"{root} is not the service's artifact store, or {probe.name} would be there; is it mounted?"
    except OSError as error:
        return f"it cannot read the artifact store: {error.strerror} ({probe})"
    if not os.access(root, os.W_OK | os.X_OK):
        return f"it may not write to the artifact store {root}: mount it writable, or fix its rights"
    return None


class StoreWatch:
    """Checks a bucket in a thread, because a bucket may answer slowly and heartbeats must not wait for it."""

    EVERY_SECONDS = 5.0

    def __init__(self, store: RemoteStore, node: NodeId) -> None:
        self._store, self._mark = store, f"nodes/{node}"
        self._has_written = False
        self.trouble: str | None = "it has not had an answer from its artifact store yet"

    def begin(self) -> None:
        threading.Thread(target=self._run, name="store-watch", daemon=True).start()

    def _run(self) -> None:
        while True:
            self.trouble = self._look()
            threading.Event().wait(self.EVERY_SECONDS)

    def _look(self) -> str | None:
        try:
            if (why := self._store.trouble()) is None and not self._has_written:
                self._store.write(b"", self._mark)
        except StoreUnreachable as error:
            why = f"it may not write to the artifact store: {error}"
        # A write costs more than a read, so writing is only tested at first and after each error.
        self._has_written = why is None
        return why


@dataclass(frozen=True, slots=True)
class AttemptFiles:
    """The paths of one attempt's files on this node."""

    root: Path
    job: JobId
    attempt: int

    @property
    def folder(self) -> Path:
        """Returns the only folder that the attempt writes to."""
        return self.root / layout.attempt_folder(self.job, self.attempt)

    @property
    def outputs(self) -> Path:
        return self.root / layout.outputs_folder(self.job, self.attempt)

    def relative(self, path: Path) -> str:
        """Returns the path relative to the store's root, as events name it."""
        with suppress(ValueError):
            return str(path.relative_to(self.root))
        return str(path)

    def here(self, path: str) -> str:
        """Returns this node's path of a checkpoint that is named by another node's path."""
        place = layout.checkpoint_in(path)
        is_moved = place is not None and not Path(path).is_dir() and (self.root / place).is_dir()
        return str(self.root / str(place)) if is_moved else path

    def existing(self, path: str) -> Path:
        """Returns the folder of a checkpoint that the service offered. Raises if the path leads out of the store."""
        root = self.root.resolve()
        try:
            folder = (root / path).resolve()
        except (OSError, RuntimeError) as error:
            # Links that form a loop.
            raise CheckpointCorrupt(f"{path} leads nowhere: {error}") from error
        if not folder.is_relative_to(root):
            raise CheckpointCorrupt(f"{path} leads out of the artifact store")
        return folder
