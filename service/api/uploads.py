"""Stores request bodies as files. A body streams into a temporary file beside its final place, never into memory."""

from __future__ import annotations

import asyncio
import hashlib
import os
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, Any, TypeVar

from footplate.contract.bucket import RemoteStore
from footplate.contract.errors import Unavailable
from footplate.contract.layout import PASSED_ONLY
from footplate.contract.safe_paths import sync_folder
from service.artifact_files import Store

T = TypeVar("T")
PIECE = 1024 * 1024
ABANDONED_SECONDS = 86_400
"""The age from which a temporary file counts as left behind by a process that died."""
UPLOADING = ".upload-"


class CannotKeep(Unavailable):
    code = "store_unwritable"
    title = "The artifact store takes no files"


@contextmanager
def _store_errors() -> Iterator[None]:
    """Raises CannotKeep for an error of the artifact store's folder or bucket."""
    try:
        yield
    except OSError as error:
        raise CannotKeep(f"the artifact store cannot be changed: {error.strerror or error}") from error


@dataclass(frozen=True, slots=True)
class Upload:
    """A complete request body in a temporary file, which is flushed to the disk."""

    file: IO[bytes]
    sha256: str
    bytes: int

    @_store_errors()
    def put(self, store: Store, path: str) -> None:
        """Puts the file into the artifact store. If a file of this name exists, it has the same bytes and stays."""
        if not isinstance(store, RemoteStore):
            self.link(store, path)
        elif not store.has(path):
            store.put(Path(self.file.name), path)

    @_store_errors()
    def link(self, store: Store, path: str) -> None:
        """Links the file into an artifact store that is a folder. For a bucket, `keep` has uploaded the file before."""
        if isinstance(store, RemoteStore):
            return
        place = store / path
        place.parent.mkdir(mode=PASSED_ONLY, parents=True, exist_ok=True)
        with suppress(FileExistsError):
            os.link(self.file.name, place)
            os.chmod(place, 0o644)
        sync_folder(place.parent)


@asynccontextmanager
async def uploaded(pieces: AsyncIterator[bytes], folder: Path) -> AsyncIterator[Upload]:
    """Yields the upload once its pieces are on the disk. The temporary file is deleted at the end, or at an error."""
    with await asyncio.to_thread(_temporary_file, folder) as file:
        digest, size, waiting = hashlib.sha256(), 0, bytearray()

        @_store_errors()
        def write(piece: bytes) -> None:
            digest.update(piece)
            file.write(piece)

        async for piece in pieces:
            size += len(piece)
            waiting += piece
            if len(waiting) >= PIECE:
                await asyncio.to_thread(write, bytes(waiting))
                waiting.clear()
        await asyncio.to_thread(write, bytes(waiting))
        await asyncio.to_thread(_sync, file)
        yield Upload(file, digest.hexdigest(), size)


async def keep(store: Store, path: str, upload: Upload, write: Callable[[Callable[[], None]], Awaitable[T]]) -> T:
    """Stores the file, then its row with `write`, then makes sure again that the file exists.

    Another project may have deleted the last row with the same bytes, and the file with it, in between. `write` gets a
    function that puts the file into its place inside the transaction.
    """
    if isinstance(store, RemoteStore):
        await asyncio.to_thread(upload.put, store, path)
    row = await write(partial(upload.link, store, path))
    await asyncio.to_thread(upload.put, store, path)
    return row


async def remover(store: Store, path: str) -> Callable[[], None]:
    """Returns a function that deletes a file inside a transaction. Both raise CannotKeep if the store is unwritable."""
    if isinstance(store, RemoteStore):
        if (why := await asyncio.to_thread(store.trouble)) is not None:
            raise CannotKeep(f"the artifact store cannot delete files now: {why}")
        remove = partial(store.remove_file, path)
    else:
        remove = partial((store / path).unlink, missing_ok=True)
    return _store_errors()(remove)


@_store_errors()
def _temporary_file(folder: Path) -> Any:
    folder.mkdir(mode=PASSED_ONLY, parents=True, exist_ok=True)
    for path in folder.glob(f"{UPLOADING}*"):
        with suppress(OSError):
            if time.time() - path.stat().st_mtime > ABANDONED_SECONDS:
                path.unlink()
    return tempfile.NamedTemporaryFile(dir=folder, prefix=UPLOADING)


@_store_errors()
def _sync(file: IO[bytes]) -> None:
    file.flush()
    os.fsync(file.fileno())
