"""The temporary folder of an attempt's processes, and its working folder if the artifact store is a bucket.

A killed process does not clean up, so the supervisor of an attempt locks the folder and deletes it at the end. If the
supervisor is killed too, the node finds the folder without a lock and deletes it.
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

from footplate.contract.host.linux import try_lock
from footplate.contract.ids import NodeId
from footplate.contract.safe_paths import folder_below

LONGEST = 60
"""The longest path of a temporary folder. Data workers make sockets below it, whose paths have at most 107 bytes."""
YOUNG_SECONDS = 5.0
"""The age below which a folder is not removed, because its supervisor may not have locked it yet."""


@contextmanager
def scratch(node: NodeId, parent: Path | None = None) -> Iterator[str]:
    """Makes a locked folder below the temporary folder or `parent`, and removes it at the end."""
    root = parent or temporary()
    root.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix=_prefix(node), dir=root))
    with folder_below(root, folder.name) as fd:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            yield str(folder)
        finally:
            remove(folder)


def sweep(node: NodeId, parent: Path | None = None) -> None:
    """Removes the folders of this node's killed supervisors."""
    for folder in (parent or temporary()).glob(f"{_prefix(node)}*"):
        with suppress(OSError):
            if time.time() - folder.lstat().st_mtime > YOUNG_SECONDS and not _is_held(folder):
                remove(folder)


def remove(folder: Path) -> None:
    """Removes as much as can be removed, without following links.

    Unpacked code is read-only, and only root can remove files from a read-only folder. Another user may own what is in
    the folder, and may put links into it meanwhile.
    """
    if os.geteuid() != 0:
        with suppress(OSError):
            for _, _, _, fd in os.fwalk(folder):
                with suppress(OSError):
                    os.fchmod(fd, 0o700)
    shutil.rmtree(folder, ignore_errors=True)


def _is_held(folder: Path) -> bool:
    with folder_below(folder.parent, folder.name) as fd:
        return not try_lock(fd)


def _prefix(node: NodeId) -> str:
    return f"footplate-{node[-8:]}-"


def temporary() -> Path:
    """Returns the system's temporary folder, unless its path leaves no room for a socket's name."""
    root = Path(tempfile.gettempdir())
    return root if len(str(root)) <= LONGEST else Path("/tmp")
