"""Files below the artifact store's root, opened and read without following a link."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from contract.errors import Unavailable

PIECE = 256 * 1024
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
# A pipe is opened at once, too, and then told from a file.
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_NOT_THERE = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG, errno.ENXIO, errno.EISDIR})


class CannotRead(Unavailable):
    code = "store_unreadable"
    title = "The artifact store cannot be read"


def open_below(root: Path, path: str) -> IO[bytes] | None:
    """A plain file below a folder; None where there is none.

    Opened folder by folder, so that no link is followed, not even one that training puts there while this looks.
    """
    *folders, name = path.split("/")
    if "\0" in path or not {"", ".", ".."}.isdisjoint([*folders, name]):
        return None
    try:
        file = _opened(root, folders, name)
    except UnicodeEncodeError:
        return None
    except OSError as error:
        if error.errno in _NOT_THERE:
            return None
        raise CannotRead(f"{name} cannot be read from the artifact store: {error.strerror}") from error
    if stat.S_ISREG(os.fstat(file).st_mode):
        return os.fdopen(file, "rb", buffering=0)
    os.close(file)
    return None


def _opened(root: Path, folders: list[str], name: str) -> int:
    at = os.open(root, _FOLDER)
    try:
        for folder in folders:
            below = os.open(folder, _FOLDER | os.O_NOFOLLOW, dir_fd=at)
            os.close(at)
            at = below
        return os.open(name, _FILE, dir_fd=at)
    finally:
        os.close(at)


def exactly(file: IO[bytes], count: int) -> Iterator[bytes]:
    """So many bytes of it. One that has become shorter breaks the connection: what was announced must not be padded."""
    while count:
        piece = file.read(min(PIECE, count))
        if not piece:
            raise CannotRead(f"a file became shorter while it was sent: {count} bytes are missing")
        count -= len(piece)
        yield piece


def sync_folder(folder: Path) -> None:
    """The names in it are on the disk."""
    handle = os.open(folder, _FOLDER)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
