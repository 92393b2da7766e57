"""Opens files below a folder that another user can write to, without following links.

Each folder on the way is opened by itself, so that not even a link that is created meanwhile is followed. Our process
may be root, and no user's link may send it to other files.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
# O_NONBLOCK opens a pipe at once, too. It is recognised afterwards.
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
NOT_THERE = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENXIO})
"""Errors of a file that does not exist, or of a link in the file's place or on the way."""


@contextmanager
def folder_below(root: Path, path: str) -> Iterator[int]:
    """Opens a folder. Raises OSError if it does not exist or a link is on the way. `path` has no `..` in it."""
    at = os.open(root, _FOLDER)
    try:
        for name in path.split("/") if path else ():
            below = os.open(name, _FOLDER | os.O_NOFOLLOW, dir_fd=at)
            os.close(at)
            at = below
        yield at
    finally:
        os.close(at)


def file_below(root: Path, path: str) -> int | None:
    """Opens a plain file.

    Returns None for another kind of file. Raises OSError if there is no file or a link is on the way.
    """
    folder, _, name = path.rpartition("/")
    with folder_below(root, folder) as at:
        file = os.open(name, _FILE, dir_fd=at)
    if stat.S_ISREG(os.fstat(file).st_mode):
        return file
    os.close(file)
    return None


def link_below(root: Path, path: str, target: Path) -> bool:
    """Gives a file a second name. Returns False if it is not a plain file. Raises OSError as the others do."""
    folder, _, name = path.rpartition("/")
    with folder_below(root, folder) as at:
        os.link(name, target, src_dir_fd=at, follow_symlinks=False)
    if stat.S_ISREG(os.lstat(target).st_mode):
        return True
    target.unlink()
    return False
