"""Stores request bodies as files. A body streams into a temporary file beside its final place, never into memory."""

from __future__ import annotations

import asyncio
import hashlib
import os
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator
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
from service.deps import Services
from service.jobs.references import drop
from service.store.content import ContentTable

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
        if isinstance(store, RemoteStore):
            if not store.has(path):
                store.put(Path(self.file.name), path)
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
        digest, size, unwritten = hashlib.sha256(), 0, bytearray()

        @_store_errors()
        def write(piece: bytes) -> None:
            digest.update(piece)
            file.write(piece)

        async for piece in pieces:
            size += len(piece)
            unwritten += piece
            if len(unwritten) >= PIECE:
                await asyncio.to_thread(write, bytes(unwritten))
                unwritten.clear()
        await asyncio.to_thread(write, bytes(unwritten))
        await asyncio.to_thread(_sync, file)
        yield Upload(file, digest.hexdigest(), size)


async def keep(services: Services, path: str, upload: Upload, write: Callable[..., T]) -> T:
    """Stores the file, then its row with `write`, then makes sure again that the file exists.

    Another project may have deleted the last row with the same bytes, and the file with it, in between. `write` gets
    `put`, a function that puts the file into its place inside the transaction.
    """
    put = partial(upload.put, services.settings.store, path)
    if isinstance(services.settings.store, RemoteStore):
        # A transaction cannot wait for a bucket.
        await asyncio.to_thread(put)
        row = await services.db.write(write, put=lambda: None)
    else:
        row = await services.db.write(write, put=put)
    await asyncio.to_thread(put)
    return row


async def discard(services: Services, table: ContentTable[Any], key: str, path: str) -> None:
    """Deletes a row and its file in one transaction. Raises CannotKeep, and FileInUse or BundleInUse."""
    store = services.settings.store
    if isinstance(store, RemoteStore):
        if (why := await asyncio.to_thread(store.trouble)) is not None:
            raise CannotKeep(f"the artifact store cannot delete files now: {why}")
        remove = partial(store.remove_file, path)
    else:
        remove = partial((store / path).unlink, missing_ok=True)
    remove = _store_errors()(remove)
    await services.db.write(drop, table=table, project=services.project, key=key, remove=remove)


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
