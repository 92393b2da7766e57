"""Files below a folder in which somebody else writes: reached folder by folder, so that no link is followed, not even
one that is put there meanwhile. Root may go everywhere, and nobody's code must send it there."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
# A pipe is opened at once, too, and then told from a file.
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
NOT_THERE = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENXIO})
"""Not, or not any more; or a link has its name, or that of a folder on the way."""


@contextmanager
def folder_below(root: Path, path: str) -> Iterator[int]:
    """An open folder; OSError where there is none, or something else on the way. `path` has no `..` in it."""
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
    """A plain file, open; None where something else has its name. OSError where nothing has, or a link is in it."""
    folder, _, name = path.rpartition("/")
    with folder_below(root, folder) as at:
        file = os.open(name, _FILE, dir_fd=at)
    if stat.S_ISREG(os.fstat(file).st_mode):
        return file
    os.close(file)
    return None


def link_below(root: Path, path: str, target: Path) -> bool:
    """A second name for it; False, and none, where it is no plain file. OSError as of the others."""
    folder, _, name = path.rpartition("/")
    with folder_below(root, folder) as at:
        os.link(name, target, src_dir_fd=at, follow_symlinks=False)
    if stat.S_ISREG(os.lstat(target).st_mode):
        return True
    target.unlink()
    return False
