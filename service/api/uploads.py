"""Bodies that are kept as files. They stream to a file beside their place, never into memory."""

from __future__ import annotations

import asyncio
import hashlib
import os
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, Any, TypeVar

from starlette.requests import Request

from footplate.contract.bucket import RemoteStore, StoreAway
from footplate.contract.errors import Unavailable
from footplate.contract.layout import PASSED_ONLY
from service.artifact_files import Store, sync_folder
from service.problems import UnsupportedMediaType

T = TypeVar("T")
PIECE = 1024 * 1024
LEFT_SECONDS = 86_400
"""An upload that is as old was left behind by a process that died."""
UPLOADING = ".upload-"


class CannotKeep(Unavailable):
    code = "store_unwritable"
    title = "The artifact store takes no files"


@dataclass(frozen=True, slots=True)
class Upload:
    """A body in a file that is on the disk, until somebody puts it into its place."""

    file: IO[bytes]
    sha256: str
    bytes: int

    def put(self, store: Store, path: str) -> None:
        """Another name for the same file; where one of that name is, it has the same bytes."""
        if not isinstance(store, RemoteStore):
            self._link(store / path)
            return
        try:
            if not store.has(path):
                store.put(Path(self.file.name), path)
        except StoreAway as error:
            raise _cannot(error) from error

    def put_in_a_moment(self, store: Store, path: str) -> None:
        """While a transaction waits. To a bucket it was sent before."""
        if not isinstance(store, RemoteStore):
            self._link(store / path)

    def _link(self, place: Path) -> None:
        place.parent.mkdir(mode=PASSED_ONLY, parents=True, exist_ok=True)
        with suppress(FileExistsError):
            os.link(self.file.name, place)
            os.chmod(place, 0o644)
        sync_folder(place.parent)


@asynccontextmanager
async def uploaded(
    pieces: AsyncIterator[bytes], folder: Path, limit: int, too_large: Callable[[], Exception]
) -> AsyncIterator[Upload]:
    """All the pieces, as soon as they are on the disk. One byte beyond the limit, and nothing is left of them."""
    with await asyncio.to_thread(_taken, folder) as file:
        digest, size, waiting = hashlib.sha256(), 0, bytearray()

        def write(piece: bytes) -> None:
            digest.update(piece)
            file.write(piece)

        async for piece in pieces:
            size += len(piece)
            if size > limit:
                raise too_large()
            waiting += piece
            if len(waiting) >= PIECE:
                await _kept(write, bytes(waiting))
                waiting.clear()
        await _kept(write, bytes(waiting))
        await _kept(_sync, file)
        yield Upload(file, digest.hexdigest(), size)


async def keep(store: Store, path: str, upload: Upload, write: Callable[[Callable[[], None]], Awaitable[T]]) -> T:
    """The file stands before its row does, and after it: another project may have let go of the last one between the
    two. `write` keeps the row, with what makes sure of the file."""
    if isinstance(store, RemoteStore):
        await asyncio.to_thread(upload.put, store, path)
    kept = await write(partial(upload.put_in_a_moment, store, path))
    await asyncio.to_thread(upload.put, store, path)
    return kept


async def remover(store: Store, path: str) -> Callable[[], None]:
    """What takes a file away, while a transaction waits. Raises CannotKeep where it would wait in vain."""
    if not isinstance(store, RemoteStore):
        return partial((store / path).unlink, missing_ok=True)
    if (why := await asyncio.to_thread(store.trouble)) is not None:
        raise CannotKeep(f"nothing can be taken from the artifact store: {why}")
    return partial(_removed, store, path)


def _removed(store: RemoteStore, path: str) -> None:
    try:
        store.remove_file(path)
    except StoreAway as error:
        raise _cannot(error) from error


def body_of(request: Request, limit: int, too_large: Callable[[], Exception]) -> AsyncIterator[bytes]:
    """A body as it comes. One that says that it is too large is refused before it does."""
    if request.headers.get("content-encoding", "identity").lower() not in ("", "identity"):
        raise UnsupportedMediaType("Content-Encoding is not taken", hint="send the file as it is")
    length = request.headers.get("content-length", "")
    if length.isascii() and length.isdigit() and int(length[:20]) > limit:
        raise too_large()
    return request.stream()


def _taken(folder: Path) -> Any:
    try:
        folder.mkdir(mode=PASSED_ONLY, parents=True, exist_ok=True)
        for left in folder.glob(f"{UPLOADING}*"):
            with suppress(OSError):
                if time.time() - left.stat().st_mtime > LEFT_SECONDS:
                    left.unlink()
        return tempfile.NamedTemporaryFile(dir=folder, prefix=UPLOADING)
    except OSError as error:
        raise _cannot(error) from error


async def _kept(write: Callable[[Any], None], what: Any) -> None:
    try:
        await asyncio.to_thread(write, what)
    except OSError as error:
        raise _cannot(error) from error


def _sync(file: IO[bytes]) -> None:
    file.flush()
    os.fsync(file.fileno())


def _cannot(error: OSError) -> CannotKeep:
    return CannotKeep(f"the artifact store does not take the upload: {error.strerror or error}")
