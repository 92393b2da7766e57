"""Files that the service stores under their sha256, as a node opens them: bundles and uploaded files."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import IO


class Changed(Exception):
    """The file differs from the upload."""


def open_kept(file: Path, sha256: str) -> IO[bytes]:
    """Opens a file after every byte was verified, because the store may have changed.

    Raises FileNotFoundError, and Changed.
    """
    opened = file.open("rb")
    if hashlib.file_digest(opened, "sha256").hexdigest() != sha256:
        opened.close()
        raise Changed(f"{file.name} has changed in the artifact store (its sha256 differs)")
    return opened
