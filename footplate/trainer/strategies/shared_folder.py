"""One folder for processes on several machines, whether or not they see the same disk.

written   each process fills in its own; what lies where the main one does not see it is sent there, then it commits
brought   what the main process has, where the others can read it, for as long as they do

Files travel in the processes' own group, in bounded pieces, and are held against their sha256. What fails in one
process fails in all, and at the same place: nobody waits for somebody who has given up.
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
from footplate.trainer.strategies.peers import Alone

T = TypeVar("T")

PIECE_BYTES = 16 * 1024 * 1024
"""What of a file is in memory at once."""


class Listed(NamedTuple):
    name: str
    bytes: int
    sha256: str


def written(peers: Alone, commit: Callable[[Callable[[Path], None]], T], fill: Callable[[Path], None], own: Path) -> T:
    """What `commit(write)` makes in the main process of a folder that every process's `fill` has written to. Who does
    not see that one fills another, below a folder of its own."""
    opened = False

    def write(folder: Path) -> None:
        nonlocal opened
        opened = True
        _filled(peers, folder, fill, own)

    def lead() -> T:
        try:
            return commit(write)
        except Exception as error:
            if not opened:
                peers.first(partial(_raise, error))
            raise

    work: Callable[[], Any] = lead if peers.is_main else lambda: _filled(peers, None, fill, own)
    made: T = peers.each(work)[0]
    return made


def _filled(peers: Alone, opened: Path | None, fill: Callable[[Path], None], own: Path) -> None:
    place = Path(peers.first(lambda: str(opened)))
    sees = _sees(peers, place)
    mine = place if sees else own / f".tmp-checkpoint-part-{peers.rank}"

    def part() -> list[Listed]:
        if not sees:
            shutil.rmtree(mine, ignore_errors=True)
        mine.mkdir(parents=True, exist_ok=True)
        fill(mine)
        return [] if sees else _listed(mine)

    try:
        parts = peers.each(part)
        peers.each(lambda: _collect(peers, parts, mine))
    finally:
        if not sees:
            shutil.rmtree(mine, ignore_errors=True)


def _sees(peers: Alone, place: Path) -> bool:
    """Nobody else has a folder of that name: it was made a moment ago, with a number of its own."""
    return place.is_dir()


def _collect(peers: Alone, parts: list[list[Listed]], mine: Path) -> None:
    _tell([_pass(peers, files, mine, source, to=0) for source, files in enumerate(parts)])


@contextmanager
def brought(peers: Alone, folder: Path, own: Path, wants: Callable[[str], bool]) -> Iterator[Path]:
    """Those files of it whose names are wanted. A copy is one for each machine, below a folder of its own."""
    place = own / f".tmp-checkpoint-at-{peers.rank - peers.local_rank}"
    try:
        yield bring(peers, folder, place, wants)
        peers.wait()
    finally:
        if peers.local_rank == 0:
            shutil.rmtree(place, ignore_errors=True)


def bring(peers: Alone, folder: Path, place: Path, wants: Callable[[str], bool] = lambda name: True) -> Path:
    """Where this process reads what the main one has there: in the same folder, or in the copy that `place` then has,
    and nothing else."""
    told = peers.everyone(_seal(folder))
    if len(set(told)) == 1:
        return folder
    sees, into = told[peers.rank] == told[0], place / folder.name
    takes = not sees and peers.local_rank == 0

    def pass_on(files: Sequence[Listed]) -> None:
        if takes:
            shutil.rmtree(place, ignore_errors=True)
        _tell([_pass(peers, files, folder if peers.is_main else into if takes else None, 0, to=None)])

    files = peers.first(lambda: [each for each in _listed(folder) if wants(each.name)])
    peers.each(lambda: pass_on(files))
    return folder if sees else into


def _seal(folder: Path) -> str:
    """The same one: machines may have disks of their own, with something else of that name."""
    manifest = folder / MANIFEST
    return hashlib.sha256(manifest.read_bytes()).hexdigest() if manifest.is_file() else str(folder.is_dir())


def _listed(folder: Path) -> list[Listed]:
    found = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return [Listed(str(path.relative_to(folder)), path.stat().st_size, _sha256(path)) for path in found]


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _pass(peers: Alone, files: Sequence[Listed], folder: Path | None, source: int, to: int | None) -> OSError | None:
    """From the folder of one process into that of another, or of all that have one. What goes wrong is said once all is
    through: the others count on so many pieces."""
    hand = partial(peers.hand, source=source, to=to)
    problems: list[OSError | None] = []
    if peers.rank == source and folder is not None:
        problems = [_give(folder / each.name, each, hand) for each in files]
    elif to in (None, peers.rank):
        problems = [_take(folder, each, hand) for each in files]
    return next(filter(None, problems), None)


def _tell(problems: list[OSError | None]) -> None:
    for problem in filter(None, problems):
        raise problem


Hand = Callable[[Tensor], None]


def _give(path: Path, file: Listed, hand: Hand) -> OSError | None:
    problem = None
    for at, piece in _pieces(file):
        try:
            if problem is None:
                _read(path, at, piece)
        except OSError as error:
            problem = error
        hand(piece)
    return problem


def _take(folder: Path | None, file: Listed, hand: Hand) -> OSError | None:
    # What another process has written as well is there already, and stays.
    path = None if folder is None or (folder / file.name).exists() else folder / file.name
    problem = None
    for at, piece in _pieces(file):
        hand(piece)
        try:
            if path is not None and problem is None:
                _write(path, at, piece, file)
        except OSError as error:
            problem = error
    return problem


def _pieces(file: Listed) -> Iterator[tuple[int, Tensor]]:
    """Of an empty file, one of a byte that is none of its."""
    box = torch.zeros(max(1, min(PIECE_BYTES, file.bytes)), dtype=torch.uint8)
    for at in range(0, max(1, file.bytes), PIECE_BYTES):
        yield at, box[: max(1, file.bytes - at)]


def _read(path: Path, at: int, piece: Tensor) -> None:
    data: Any = piece.numpy()
    with path.open("rb") as file:
        file.seek(at)
        file.readinto(data)


def _write(path: Path, at: int, piece: Tensor, file: Listed) -> None:
    data: Any = piece.numpy()[: file.bytes - at]
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab" if at else "wb") as opened:
        opened.write(data)
    if at + len(piece) >= file.bytes and _sha256(path) != file.sha256:
        raise OSError(f"{file.name} came in other bytes than it was sent")


def _raise(error: Exception) -> Any:
    raise error
