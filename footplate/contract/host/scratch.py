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

from footplate.contract.ids import NodeId

LONGEST = 60
"""Characters of a temporary folder's path: data workers make sockets below it, whose paths end at 107."""
YOUNG_SECONDS = 5.0
"""Made, and perhaps not locked yet."""
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


@contextmanager
def scratch(node: NodeId, below: Path | None = None) -> Iterator[str]:
    """Below the temporary folder, or another one."""
    root = below or temporary()
    root.mkdir(parents=True, exist_ok=True)
    folder = tempfile.mkdtemp(prefix=_prefix(node), dir=root)
    fd = os.open(folder, _FOLDER)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield folder
    finally:
        remove(Path(folder))
        os.close(fd)


def sweep(node: NodeId, below: Path | None = None) -> None:
    """Removes what this node's killed supervisors have left."""
    for folder in (below or temporary()).glob(f"{_prefix(node)}*"):
        with suppress(OSError):
            if time.time() - folder.lstat().st_mtime > YOUNG_SECONDS and not _is_held(folder):
                remove(folder)


def remove(folder: Path) -> None:
    """As much as can be. Unpacked code is read-only, and out of such a folder nobody but root removes anything. What
    lies in it may be a stranger's: no link of his is followed, not even one that he puts there meanwhile."""
    if os.geteuid() != 0:
        with suppress(OSError):
            for _, _, _, fd in os.fwalk(folder):
                with suppress(OSError):
                    os.fchmod(fd, 0o700)
    shutil.rmtree(folder, ignore_errors=True)


def _is_held(folder: Path) -> bool:
    fd = os.open(folder, _FOLDER)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False


def _prefix(node: NodeId) -> str:
    return f"footplate-{node[-8:]}-"


def temporary() -> Path:
    """The system's, unless its name leaves no room for a socket's."""
    root = Path(tempfile.gettempdir())
    return root if len(str(root)) <= LONGEST else Path("/tmp")
