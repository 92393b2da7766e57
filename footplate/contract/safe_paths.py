"""Opens files below a folder that another user can write to, without following links.

Each folder of the path is opened from the one before, so that a link that is created meanwhile is not followed either.
Our process may be root, and a user's link must not lead that process to other files.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
# With O_NONBLOCK, opening a named pipe does not wait for a writer. `file_below` then closes the pipe again.
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
NOT_THERE = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENXIO})
"""The error numbers for a file that does not exist, and for a path that contains a link."""


@contextmanager
def folder_below(root: Path, path: str) -> Iterator[int]:
    """Opens the folder `path` below `root`. Raises OSError if the folder does not exist or the path contains a link.

    The caller has checked that `path` contains no `..`.
    """
    at = os.open(root, _FOLDER)
    try:
        for name in path.split("/") if path else ():
            child = os.open(name, _FOLDER | os.O_NOFOLLOW, dir_fd=at)
            os.close(at)
            at = child
        yield at
    finally:
        os.close(at)


def file_below(root: Path, path: str) -> int | None:
    """Opens the plain file `path` below `root`, and returns its descriptor. Returns None for another kind of file.

    Raises OSError if the file does not exist or the path contains a link.
    """
    folder, _, name = path.rpartition("/")
    with folder_below(root, folder) as at:
        file = os.open(name, _FILE, dir_fd=at)
    if stat.S_ISREG(os.fstat(file).st_mode):
        return file
    os.close(file)
    return None


def sync_folder(folder: Path) -> None:
    """Makes the names in the folder durable, so that new files survive a power failure."""
    with folder_below(folder, "") as descriptor:
        os.fsync(descriptor)


def link_below(root: Path, path: str, target: Path) -> bool:
    """Makes `target` a hard link to the file `path` below `root`. Returns False if that is not a plain file.

    Raises OSError if the file does not exist or the path contains a link.
    """
    folder, _, name = path.rpartition("/")
    with folder_below(root, folder) as at:
        os.link(name, target, src_dir_fd=at, follow_symlinks=False)
    if stat.S_ISREG(os.lstat(target).st_mode):
        return True
    target.unlink()
    return False
