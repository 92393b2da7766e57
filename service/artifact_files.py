"""Opens and reads files of the artifact store: from a bucket, or below a folder without following symbolic links."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import md5
from pathlib import Path
from typing import IO, cast

from footplate.contract.bucket import RemoteFile, RemoteStore, StoreUnreachable
from footplate.contract.errors import Unavailable
from footplate.contract.safe_paths import NOT_THERE, file_below

PIECE = 256 * 1024
_NOT_THERE = NOT_THERE | {errno.ENAMETOOLONG, errno.EISDIR}


Store = Path | RemoteStore
"""The artifact store, which is a folder or a bucket."""


class CannotRead(Unavailable):
    code = "store_unreadable"
    title = "The artifact store cannot be read"


@dataclass(frozen=True, slots=True)
class OpenFileInfo:
    """The size, time and version of an open file."""

    bytes: int
    modified: float
    tag: str
    """A text that changes when the file changes, for an ETag."""


def about(file: IO[bytes]) -> OpenFileInfo:
    if isinstance(file, RemoteFile):
        return OpenFileInfo(file.bytes, file.modified, file.tag)
    info = os.fstat(file.fileno())
    tag = md5(f"{info.st_mtime_ns}-{info.st_size}".encode(), usedforsecurity=False).hexdigest()
    return OpenFileInfo(info.st_size, info.st_mtime, tag)


def open_below(root: Store, path: str) -> IO[bytes] | None:
    """Opens a regular file of the artifact store. Returns None if there is no regular file at the path.

    The folders of the path are opened one by one without following links, because training may replace a folder by a
    link at any moment.
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
    except StoreUnreachable as error:
        raise CannotRead(str(error)) from error
    except OSError as error:
        if error.errno in _NOT_THERE:
            return None
        raise CannotRead(f"{name} cannot be read from the artifact store: {error.strerror}") from error
    return None if file is None else os.fdopen(file, "rb", buffering=0)


def exactly(file: IO[bytes], count: int, name: str) -> Iterator[bytes]:
    """Yields the next `count` bytes of a file. Raises CannotRead, with the file's name, if the file is shorter."""
    while count:
        try:
            piece = file.read(min(PIECE, count))
        except StoreUnreachable as error:
            raise CannotRead(f"{name} was not sent completely, {count} bytes are missing: {error}") from error
        if not piece:
            raise CannotRead(
                f"{name} became shorter while it was sent: {count} bytes are missing", hint="send the request again"
            )
        count -= len(piece)
        yield piece
