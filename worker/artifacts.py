"""The artifact store as an attempt sees it: its own folder to write below, and paths of others that stay inside."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from contract import layout
from contract.errors import CheckpointCorrupt
from contract.ids import JobId


def store_trouble(root: Path) -> str | None:
    """Why no attempt could use the artifact store, in a sentence; None: it could."""
    probe = root / layout.PROBE
    try:
        with probe.open("rb"):
            pass
    except FileNotFoundError:
        return f"{root} is not the service's artifact store, or {probe.name} would be there; is it mounted?"
    except OSError as error:
        return f"it cannot read the artifact store: {error.strerror} ({probe})"
    if not os.access(root, os.W_OK | os.X_OK):
        return f"it may not write to the artifact store {root}: mount it writable, or mend its rights"
    return None


@dataclass(frozen=True, slots=True)
class AttemptFiles:
    """Where one attempt's files lie on this node."""

    root: Path
    job: JobId
    attempt: int

    @property
    def folder(self) -> Path:
        """The only place that the attempt writes to."""
        return self.root / layout.attempt_folder(self.job, self.attempt)

    @property
    def outputs(self) -> Path:
        return self.root / layout.outputs_folder(self.job, self.attempt)

    def relative(self, path: Path) -> str:
        """As events name it: seen from the store's root."""
        with suppress(ValueError):
            return str(path.relative_to(self.root))
        return str(path)

    def existing(self, path: str) -> Path:
        """A checkpoint that the service offered, perhaps of an earlier attempt. Nothing outside the store is one."""
        root = self.root.resolve()
        try:
            folder = (root / path).resolve()
        except (OSError, RuntimeError) as error:
            # Links that lead to each other.
            raise CheckpointCorrupt(f"{path} leads nowhere: {error}") from error
        if not folder.is_relative_to(root):
            raise CheckpointCorrupt(f"{path} leads out of the artifact store")
        return folder
