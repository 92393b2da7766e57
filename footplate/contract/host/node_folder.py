"""The files in a node's folder. With some of them, one process of the node informs the others."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

MAX_TROUBLE_CHARS = 500


@dataclass(frozen=True, slots=True)
class NodeFolder:
    """The paths in a node's folder."""

    root: Path

    @property
    def identity(self) -> Path:
        return self.root / "node.json"

    @property
    def journals(self) -> Path:
        return self.root / "journals"

    @property
    def run(self) -> Path:
        """Returns the folder of this start of the node. The next start deletes it."""
        return self.root / "run"

    @property
    def work(self) -> Path:
        """Returns the folder in which attempts work, one subfolder each, if the artifact store is a bucket."""
        return self.root / "work"

    @property
    def catalogue(self) -> Path:
        """Returns the file with the arguments of this node's components, made soon after the start."""
        return self.run / "catalogue.json"

    @property
    def attempts(self) -> Path:
        """Returns the lock file of pool processes. Each holds a shared lock from its claim to the attempt's end."""
        return self.run / "attempts.lock"

    @property
    def drain(self) -> Path:
        """Returns the file whose existence drains this node until its end. A signal to the node creates the file."""
        return self.run / "drain"

    @property
    def drain_by_control(self) -> Path:
        """Returns the file that exists while an operator drains this node through the service."""
        return self.run / "drain-by-control"

    @property
    def trouble(self) -> Path:
        """Returns the file that exists while this node can start no training. It contains the reason."""
        return self.run / "trouble"

    def is_draining(self) -> bool:
        return os.access(self.drain, os.F_OK) or os.access(self.drain_by_control, os.F_OK)

    def why_not_ready(self) -> str | None:
        """Returns the reason why no training can start on this node now, or None."""
        try:
            return self.trouble.read_text(errors="replace") or "the node's disk is full"
        except FileNotFoundError:
            return None
        except OSError as error:
            return f"the node's folder cannot be read: {error}"

    def be_in_trouble(self, why: str) -> None:
        new_file = self.trouble.with_suffix(".new")
        with suppress(OSError):
            try:
                new_file.write_text(why[:MAX_TROUBLE_CHARS])
            finally:
                # On a full disk the text is lost, but the file must exist all the same.
                new_file.rename(self.trouble)

    def be_ready(self) -> None:
        self.trouble.unlink(missing_ok=True)
