"""Files of the artifact store, opened and read: below a folder without following a link, or from a bucket."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import md5
from pathlib import Path
from typing import IO, cast

from footplate.contract.bucket import RemoteFile, RemoteStore, StoreAway
from footplate.contract.errors import Unavailable
from footplate.contract.safe_paths import file_below

PIECE = 256 * 1024
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_NOT_THERE = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG, errno.ENXIO, errno.EISDIR})


Store = Path | RemoteStore
"""Where artifacts lie: below a folder, or in a bucket."""


class CannotRead(Unavailable):
    code = "store_unreadable"
    title = "The artifact store cannot be read"


@dataclass(frozen=True, slots=True)
class About:
    """What is known of an open file."""

    bytes: int
    modified: float
    tag: str
    """Another one once it has changed."""


def about(file: IO[bytes]) -> About:
    if isinstance(file, RemoteFile):
        return About(file.bytes, file.modified, file.tag)
    found = os.fstat(file.fileno())
    tag = md5(f"{found.st_mtime_ns}-{found.st_size}".encode(), usedforsecurity=False).hexdigest()
    return About(found.st_size, found.st_mtime, tag)


def open_below(root: Store, path: str) -> IO[bytes] | None:
    """A plain file of the store; None where there is none.

    Opened folder by folder, so that no link is followed, not even one that training puts there while this looks.
    """
    *folders, name = path.split("/")
    if "\0" in path or not {"", ".", ".."}.isdisjoint([*folders, name]):
        return None
    try:
        if isinstance(root, RemoteStore):
            return cast(IO[bytes] | None, root.open(path))
        file = file_below(root, path)
    except UnicodeEncodeError:
        return None
    except StoreAway as error:
        raise CannotRead(str(error)) from error
    except OSError as error:
        if error.errno in _NOT_THERE:
            return None
        raise CannotRead(f"{name} cannot be read from the artifact store: {error.strerror}") from error
    return None if file is None else os.fdopen(file, "rb", buffering=0)


def exactly(file: IO[bytes], count: int) -> Iterator[bytes]:
    """So many bytes of it. One that has become shorter breaks the connection: what was announced must not be padded."""
    while count:
        try:
            piece = file.read(min(PIECE, count))
        except StoreAway as error:
            raise CannotRead(f"{error}: {count} bytes are missing") from error
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
