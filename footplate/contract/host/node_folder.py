"""The files in a node's folder, and the notes that its processes leave for each other there."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

MAX_TROUBLE_CHARS = 500


@dataclass(frozen=True, slots=True)
class Places:
    """Where things lie in a node's folder."""

    root: Path

    @property
    def identity(self) -> Path:
        return self.root / "node.json"

    @property
    def journals(self) -> Path:
        return self.root / "journals"

    @property
    def run(self) -> Path:
        """What this start of the node needs: gone at the next one."""
        return self.root / "run"

    @property
    def work(self) -> Path:
        """Where attempts work while the artifact store is a bucket: a folder each."""
        return self.root / "work"

    @property
    def catalogue(self) -> Path:
        """What this node's components take; made soon after the start."""
        return self.run / "catalogue.json"

    @property
    def drain(self) -> Path:
        """Exists: everyone on this node comes to an end. A file, because it is there even when Redis is not."""
        return self.run / "drain"

    @property
    def drain_by_control(self) -> Path:
        """The same, by an operator's wish, which they may take back."""
        return self.run / "drain-by-control"

    @property
    def trouble(self) -> Path:
        """Exists: this node can start no training now. Says why."""
        return self.run / "trouble"

    def is_draining(self) -> bool:
        return os.access(self.drain, os.F_OK) or os.access(self.drain_by_control, os.F_OK)

    def why_not_ready(self) -> str | None:
        """Why no training can be started now, in a sentence. None: it can."""
        try:
            return self.trouble.read_text(errors="replace") or "its disk is full"
        except FileNotFoundError:
            return None
        except OSError as error:
            return f"its own folder cannot be read: {error}"

    def be_in_trouble(self, why: str) -> None:
        fresh = self.trouble.with_suffix(".new")
        with suppress(OSError):
            try:
                fresh.write_text(why[:MAX_TROUBLE_CHARS])
            finally:
                # A full disk takes no sentence. That there is one must be known all the same.
                fresh.rename(self.trouble)

    def be_ready(self) -> None:
        self.trouble.unlink(missing_ok=True)
