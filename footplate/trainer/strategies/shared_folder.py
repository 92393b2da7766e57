"""Writes and reads one checkpoint folder from processes on several machines, with or without a shared disk.

`fill_and_commit` lets each process write files to the folder. If a process cannot see the main process's folder, its
files are sent there. Then the main process commits. `readable_folder` gives every process the main process's files, in
the same folder or in a temporary copy.

Files are sent over the process group in chunks, and are verified by their sha256. If one process fails, all fail at the
same point, so no process waits for one that has failed.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from footplate.trainer.checkpoint import MANIFEST
from footplate.trainer.strategies.peers import OneProcess

T = TypeVar("T")

CHUNK_BYTES = 16 * 1024 * 1024
"""The number of bytes of a file that are in memory at once."""


class Listed(NamedTuple):
    name: str
    bytes: int
    sha256: str


def fill_and_commit(
    peers: OneProcess, commit: Callable[[Callable[[Path], None]], T], fill: Callable[[Path], None], parent: Path
) -> T:
    """Runs `commit(write)` in the main process and returns its result to all.

    `write` makes every process call `fill` with a folder. A process that does not see the main process's folder gets a
    temporary folder below `own_folder`, from which its files are sent.
    """
    is_written = False

    def write(folder: Path) -> None:
        nonlocal is_written
        is_written = True
        _filled(peers, folder, fill, parent)

    def commit_in_main() -> T:
        try:
            return commit(write)
        except Exception as error:
            if not is_written:
                # The other processes wait in `_filled` for the main process's folder, and get the error instead.
                peers.from_main(partial(_raise, error))
            raise

    work: Callable[[], Any] = commit_in_main if peers.is_main else lambda: _filled(peers, None, fill, parent)
    result: T = peers.gather_results(work)[0]
    return result


def _filled(peers: OneProcess, opened: Path | None, fill: Callable[[Path], None], parent: Path) -> None:
    place = Path(peers.from_main(lambda: str(opened)))
    sees = _sees(peers, place)
    own_place = place if sees else parent / f".tmp-checkpoint-part-{peers.rank}"

    def fill_own() -> list[Listed]:
        if not sees:
            shutil.rmtree(own_place, ignore_errors=True)
        own_place.mkdir(parents=True, exist_ok=True)
        fill(own_place)
        return [] if sees else _listed(own_place)

    try:
        listings = peers.gather_results(fill_own)
        peers.gather_results(
            lambda: _raise_first(
                [_copy(peers, files, own_place, source, to=0) for source, files in enumerate(listings)]
            )
        )
    finally:
        if not sees:
            shutil.rmtree(own_place, ignore_errors=True)


def _sees(peers: OneProcess, place: Path) -> bool:
    """Returns True if this process sees the main process's folder, whose name is new and unique."""
    return place.is_dir()


@contextmanager
def readable_folder(peers: OneProcess, folder: Path, parent: Path, is_wanted: Callable[[str], bool]) -> Iterator[Path]:
    """Yields a folder with the files of `folder` that `is_wanted` selects.

    Each machine that cannot read `folder` gets one temporary copy of these files, in the folder `own_folder`.
    """
    place = parent / f".tmp-checkpoint-at-{peers.rank - peers.local_rank}"
    try:
        yield fetch(peers, folder, place, is_wanted)
        peers.barrier()
    finally:
        if peers.local_rank == 0:
            shutil.rmtree(place, ignore_errors=True)


def fetch(peers: OneProcess, folder: Path, place: Path, is_wanted: Callable[[str], bool] = lambda name: True) -> Path:
    """Returns a folder in which this process can read the main process's wanted files.

    That is `folder` itself if this process can read the main process's `folder`. Otherwise it is a copy in `place`,
    whose earlier content is deleted.
    """
    manifests = peers.all_gather(_seal(folder))
    if len(set(manifests)) == 1:
        return folder
    sees, copy_folder = manifests[peers.rank] == manifests[0], place / folder.name
    receives = not sees and peers.local_rank == 0

    def copy(files: Sequence[Listed]) -> None:
        if receives:
            shutil.rmtree(place, ignore_errors=True)
        _raise_first([_copy(peers, files, folder if peers.is_main else copy_folder if receives else None, 0, to=None)])

    files = peers.from_main(lambda: [file for file in _listed(folder) if is_wanted(file.name)])
    peers.gather_results(lambda: copy(files))
    return folder if sees else copy_folder


def _seal(folder: Path) -> str:
    """Returns the sha256 of the checkpoint's manifest. Another machine may have another checkpoint of this name."""
    manifest = folder / MANIFEST
    return hashlib.sha256(manifest.read_bytes()).hexdigest() if manifest.is_file() else str(folder.is_dir())


def _listed(folder: Path) -> list[Listed]:
    paths = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return [Listed(str(path.relative_to(folder)), path.stat().st_size, _sha256(path)) for path in paths]


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _copy(
    peers: OneProcess, files: Sequence[Listed], folder: Path | None, source: int, to: int | None
) -> OSError | None:
    """Copies files from the folder of process `source` to that of process `to`, or of all processes with a folder.

    Returns the first error after all chunks were sent, because the other processes wait for that number of chunks.
    """
    transfer = partial(peers.transfer, source=source, to=to)
    problems: list[OSError | None] = []
    if peers.rank == source and folder is not None:
        problems = [_send(folder / file.name, file, transfer) for file in files]
    elif to in (None, peers.rank):
        problems = [_receive(folder, file, transfer) for file in files]
    return next(filter(None, problems), None)


def _raise_first(problems: list[OSError | None]) -> None:
    for problem in filter(None, problems):
        raise problem


Transfer = Callable[[Tensor], None]


def _send(path: Path, file: Listed, transfer: Transfer) -> OSError | None:
    problem = None
    for at, chunk in _chunks(file):
        data: Any = chunk.numpy()
        try:
            if problem is None:
                with path.open("rb") as opened:
                    opened.seek(at)
                    opened.readinto(data)
        except OSError as error:
            problem = error
        transfer(chunk)
    return problem


def _receive(folder: Path | None, file: Listed, transfer: Transfer) -> OSError | None:
    # A file that this process has written itself is not overwritten.
    path = None if folder is None or (folder / file.name).exists() else folder / file.name
    problem = None
    for at, chunk in _chunks(file):
        transfer(chunk)
        try:
            if path is not None and problem is None:
                _write(path, at, chunk, file)
        except OSError as error:
            problem = error
    return problem


def _chunks(file: Listed) -> Iterator[tuple[int, Tensor]]:
    """Yields the offset of each chunk of a file, and a buffer for it. An empty file has one chunk of an unused byte."""
    box = torch.zeros(max(1, min(CHUNK_BYTES, file.bytes)), dtype=torch.uint8)
    for at in range(0, max(1, file.bytes), CHUNK_BYTES):
        yield at, box[: max(1, file.bytes - at)]


def _write(path: Path, at: int, chunk: Tensor, file: Listed) -> None:
    data: Any = chunk.numpy()[: file.bytes - at]
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab" if at else "wb") as opened:
        opened.write(data)
    if at + len(chunk) >= file.bytes and _sha256(path) != file.sha256:
        raise OSError(f"{file.name} arrived with other bytes than were sent: its sha256 differs")


def _raise(error: Exception) -> Any:
    raise error
