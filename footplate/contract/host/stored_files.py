"""What the service keeps under its sha256, as a node opens it: bundles of code, and uploaded files."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import IO


class Changed(Exception):
    """It is not what was uploaded."""


def open_kept(file: Path, sha256: str) -> IO[bytes]:
    """Open, once every byte has been compared: what lies in the store may have changed. Raises FileNotFoundError, and
    Changed."""
    opened = file.open("rb")
    if hashlib.file_digest(opened, "sha256").hexdigest() != sha256:
        opened.close()
        raise Changed(f"{file.name} has changed in the artifact store (its sha256 differs)")
    return opened
