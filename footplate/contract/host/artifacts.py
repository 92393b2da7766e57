"""The artifact store on a node: the folder that an attempt writes to, its checkpoints, and stored files."""

from __future__ import annotations

import hashlib
import json
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from footplate.contract import layout
from footplate.contract.errors import CheckpointCorrupt
from footplate.contract.ids import JobId

STAGE = "footplate-stage.json"
"""A file in the job's copy of a script's checkpoint. It holds the number of the stage, which is one call of `train`,
and the job's steps before that."""


def is_checkpoint_copy(folder: Path) -> bool:
    """Returns True for the job's copy of a checkpoint that a script has written to another folder."""
    return (folder / STAGE).is_file()


def stage_of(checkpoint: Path) -> int:
    """Returns the number of the stage of a script that wrote a checkpoint.

    Returns 0 if a Trainer has written the checkpoint straight into the attempt's folder, or if the checkpoint cannot be
    read. Its verification will find the damage.
    """
    try:
        return int(json.loads((checkpoint / STAGE).read_text())["stage"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return 0


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
        """Returns the path relative to the store's root, which is the form of paths in events."""
        with suppress(ValueError):
            return str(path.relative_to(self.root))
        return str(path)

    def here(self, path: str) -> str:
        """Translates the path of a checkpoint on another node to its path on this node. Other paths do not change."""
        place = layout.checkpoint_in(path)
        is_moved = place is not None and not Path(path).is_dir() and (self.root / place).is_dir()
        return str(self.root / str(place)) if is_moved else path

    def existing(self, path: str) -> Path:
        """Returns the folder of a checkpoint. Raises CheckpointCorrupt if a link leads out of the artifact store."""
        root = self.root.resolve()
        try:
            folder = (root / path).resolve()
        except (OSError, RuntimeError) as error:
            # The path contains links that lead to each other in a circle.
            raise CheckpointCorrupt(f"{path} cannot be opened: {error}") from error
        if not folder.is_relative_to(root):
            raise CheckpointCorrupt(f"{path} leads out of the artifact store")
        return folder


class FileChanged(Exception):
    """The bytes of a stored file differ from those that were uploaded."""


def open_stored(file: Path, sha256: str) -> IO[bytes]:
    """Opens a bundle or an uploaded file, after a comparison of every byte with its sha256.

    Raises FileChanged if the bytes differ, and FileNotFoundError.
    """
    content = file.open("rb")
    if hashlib.file_digest(content, "sha256").hexdigest() != sha256:
        content.close()
        raise FileChanged(f"{file.name} has changed in the artifact store (its sha256 differs)")
    return content
