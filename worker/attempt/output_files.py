"""What an attempt leaves in its folder beside checkpoints, between a node's disk and a bucket.

One node leaves it as it is, and a mark behind it where it is a script's. Of several, which share no folder, each leaves
its own:

    outputs/…            where they are looked for: of one path, what was sent last stands
    …                    what the first node has written
    .nodes/2/…           what another has
    .nodes/before/…      what was there already, and the first node has not touched
    .nodes/2-of-4        that node has handed in all of it: put last

A script goes on in what its last attempt left. What all nodes have handed in is laid into one folder, on each node the
same; where two have written one path, the first one's stands.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from footplate.contract import layout
from footplate.contract.bucket import RemoteStore, stays_inside
from footplate.contract.host.artifacts import AttemptFiles
from footplate.contract.messages import Grant
from footplate.contract.safe_paths import NOT_THERE, file_below

NODES, BEFORE = ".nodes", ".nodes/before"


def is_a_script(grant: Grant) -> bool:
    """Whether it is the script's own affair what of the folder counts."""
    loop = grant.spec.get("loop")
    return isinstance(loop, dict) and "script" in loop


class AttemptOutputs:
    """Of one attempt, on one node."""

    def __init__(self, store: RemoteStore, grant: Grant, files: AttemptFiles) -> None:
        self._store, self._grant, self._files, self._folder = store, grant, files, files.folder
        self._place = str(layout.attempt_folder(grant.job, grant.attempt))
        self._begun_with: dict[str, tuple[int, int]] = {}
        """The files that the folder began with, and how they looked."""

    def begin_with(self, attempt: int, passed_over: Callable[[str], None]) -> bool:
        """The folder, with what that attempt left. False: there is nothing, or not all of it."""
        place = str(layout.attempt_folder(self._grant.job, attempt))
        found = [one.path for one in self._store.files(place) if stays_inside(one.path)]
        left = by_all(found, self._grant.nodes)
        if left is None:
            whose = (
                "the node has not handed in all that" if self._grant.nodes == 1 else "not every node has handed in what"
            )
            passed_over(f"{place} is passed over: {whose} it left there")
        for path, where in (left or {}).items():
            file = self._folder / path
            with suppress(FileNotFoundError):
                self._store.fetch(f"{place}/{where}", file)
                self._begun_with[path] = _look_of(file)
        return bool(left)

    def files(self, is_sent: Callable[[Path], bool]) -> Iterator[Path]:
        """Regular ones, but for what saves have left half written, and folders that were sent as a whole."""
        for parent, folders, names in os.walk(self._folder):
            at = Path(parent)
            folders[:] = sorted(one for one in folders if not (one.startswith(".") or is_sent(at / one)))
            yield from (at / name for name in sorted(names) if (at / name).is_file() and not (at / name).is_symlink())

    def send(self, file: Path) -> bool:
        """Whether it is there: the file that was looked at, and no link that user code has put in its place since."""
        try:
            opened = file_below(self._files.root, self._files.relative(file))
        except OSError as error:
            if error.errno not in NOT_THERE:
                raise
            return False
        if opened is None:
            return False
        try:
            self._put(opened, str(file.relative_to(self._folder)))
        finally:
            os.close(opened)
        return True

    def _put(self, opened: int, path: str) -> None:
        if (key := self._key(path, was_found=self._was_found(opened, path))) is not None:
            self._store.put(Path(f"/proc/self/fd/{opened}"), f"{self._place}/{key}")

    def is_handed_in(self) -> None:
        if is_a_script(self._grant):
            self._store.write(b"", f"{self._place}/{_mark(self._grant.source, self._grant.nodes)}")

    def _key(self, path: str, *, was_found: bool) -> str | None:
        """Where it goes. None: that is somebody else's to send."""
        first, is_output = self._grant.source == 0, path.startswith(f"{layout.OUTPUTS}/")
        if self._grant.nodes == 1 or not (was_found or is_output):
            return path if first else f"{NODES}/{self._grant.source}/{path}"
        if not is_output:
            return f"{BEFORE}/{path}" if first else None
        # Another node may have written a newer one meanwhile.
        stands = was_found and (not first or self._store.has(f"{self._place}/{path}"))
        return None if stands else path

    def _was_found(self, opened: int, path: str) -> bool:
        return self._begun_with.get(path) == _look_of(opened)


def by_all(found: Iterable[str], nodes: int) -> dict[str, str] | None:
    """By its path in the folder: where it lies in the attempt's. None: not every node has handed in what it left, and a
    part of it is no state that a run was in."""
    there = set(found)
    if there and not there.issuperset(_mark(node, nodes) for node in range(nodes)):
        return None
    left: dict[str, str] = {}
    for layer in (BEFORE, *(f"{NODES}/{node}" for node in range(nodes - 1, 0, -1))):
        left |= {path.removeprefix(f"{layer}/"): path for path in there if path.startswith(f"{layer}/")}
    return left | {path: path for path in there if not path.startswith(f"{NODES}/")}


def _mark(node: int, nodes: int) -> str:
    return f"{NODES}/{node}-of-{nodes}"


def _look_of(file: Path | int) -> tuple[int, int]:
    """Another one once somebody has written to it."""
    about = os.stat(file)
    return about.st_size, about.st_mtime_ns
