"""What an attempt's processes put into the temporary folder: one folder each, held by its supervisor's lock. And the
folder that an attempt works in where the artifact store is a bucket, below the node's own.

A killed process tidies nothing up. So the folder of training goes with its supervisor; and where that was killed too,
the node, which finds the folder locked by nobody, removes it.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from contract.ids import NodeId

LONGEST = 60
"""Characters of a temporary folder's path: data workers make sockets below it, whose paths end at 107."""
YOUNG_SECONDS = 5.0
"""Made, and perhaps not locked yet."""


@contextmanager
def scratch(node: NodeId, below: Path | None = None) -> Iterator[str]:
    """Below the temporary folder, or another one."""
    root = below or _root()
    root.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=_prefix(node), dir=root, ignore_cleanup_errors=True) as folder:
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            yield folder
        finally:
            os.close(fd)


def sweep(node: NodeId, below: Path | None = None) -> None:
    """Removes what this node's killed supervisors have left."""
    for folder in (below or _root()).glob(f"{_prefix(node)}*"):
        with suppress(OSError):
            if time.time() - folder.stat().st_mtime > YOUNG_SECONDS and not _is_held(folder):
                remove(folder)


def remove(folder: Path) -> None:
    """As much as can be. Unpacked code is read-only, and out of such a folder nobody but root removes anything."""
    for parent, _, _ in os.walk(folder):
        with suppress(OSError):
            os.chmod(parent, 0o700)
    shutil.rmtree(folder, ignore_errors=True)


def _is_held(folder: Path) -> bool:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False


def _prefix(node: NodeId) -> str:
    return f"footplate-{node[-8:]}-"


def _root() -> Path:
    """The system's, unless its name leaves no room for a socket's."""
    root = Path(tempfile.gettempdir())
    return root if len(str(root)) <= LONGEST else Path("/tmp")
