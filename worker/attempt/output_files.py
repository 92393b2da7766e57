"""The files that an attempt leaves beside checkpoints, and their layout in a bucket.

One node sends its files as they are, and for a script a mark at the end. Several nodes share no folder, so each sends
its own files:

    outputs/…            as on the node; of two files with one path, the last one sent stays
    …                    files of the first node
    .nodes/2/…           files of node 2
    .nodes/before/…      files that were there at the start, and that the first node has not changed
    .nodes/2-of-4        the mark that node 2 has sent everything

The next attempt of a script starts with what its last attempt left. The files of all nodes go into one folder, which is
the same on every node. Of two files with one path, the first node's is used.
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
    """Returns True for a script, whose folder may hold files with any meaning."""
    loop = grant.spec.get("loop")
    return isinstance(loop, dict) and "script" in loop


class AttemptOutputs:
    """The files that one attempt leaves on one node."""

    def __init__(self, store: RemoteStore, grant: Grant, files: AttemptFiles) -> None:
        self._store, self._grant, self._files, self._folder = store, grant, files, files.folder
        self._place = str(layout.attempt_folder(grant.job, grant.attempt))
        self._begun_with: dict[str, tuple[int, int]] = {}
        """Size and time of each file that was in the folder at the start."""

    def begin_with(self, attempt: int, report: Callable[[str], None] | None) -> bool:
        """Fills the folder with what that attempt left. Returns False if a node has not sent everything."""
        place = str(layout.attempt_folder(self._grant.job, attempt))
        paths = [file.path for file in self._store.files(place) if stays_inside(file.path)]
        left = merged_paths(paths, self._grant.nodes)
        if left is None and report is not None:
            who = "the node has not" if self._grant.nodes == 1 else "not every node has"
            report(f"{place} is skipped, because {who} handed in all that it left there")
        for path, where in (left or {}).items():
            file = self._folder / path
            with suppress(FileNotFoundError):
                self._store.fetch(f"{place}/{where}", file)
                self._begun_with[path] = _look_of(file)
        return bool(left)

    def files(self, is_sent: Callable[[Path], bool]) -> Iterator[Path]:
        """Yields regular files, without hidden folders and folders that were sent as a whole."""
        for parent, folders, names in os.walk(self._folder):
            at = Path(parent)
            folders[:] = sorted(name for name in folders if not (name.startswith(".") or is_sent(at / name)))
            yield from (at / name for name in sorted(names) if (at / name).is_file() and not (at / name).is_symlink())

    def send(self, file: Path) -> bool:
        """Sends a file that is still a regular file.

        User code may have replaced it by a link. Returns False if it is gone.
        """
        try:
            opened = file_below(self._files.root, self._files.relative(file))
        except OSError as error:
            if error.errno not in NOT_THERE:
                raise
            return False
        if opened is None:
            return False
        path = str(file.relative_to(self._folder))
        try:
            if (key := self._key(path, was_found=self._was_found(opened, path))) is not None:
                self._store.put(Path(f"/proc/self/fd/{opened}"), f"{self._place}/{key}")
        finally:
            os.close(opened)
        return True

    def mark_complete(self) -> None:
        if is_a_script(self._grant):
            self._store.write(b"", f"{self._place}/{_mark(self._grant.source, self._grant.nodes)}")

    def _key(self, path: str, *, was_found: bool) -> str | None:
        """Returns the file's path in the bucket, or None if another node sends it."""
        first, is_output = self._grant.source == 0, path.startswith(f"{layout.OUTPUTS}/")
        if self._grant.nodes == 1 or not (was_found or is_output):
            return path if first else f"{NODES}/{self._grant.source}/{path}"
        if not is_output:
            return f"{BEFORE}/{path}" if first else None
        # Another node may have sent a newer file.
        stands = was_found and (not first or self._store.has(f"{self._place}/{path}"))
        return None if stands else path

    def _was_found(self, opened: int, path: str) -> bool:
        return self._begun_with.get(path) == _look_of(opened)


def merged_paths(found: Iterable[str], nodes: int) -> dict[str, str] | None:
    """Maps each path in the folder to its path in the bucket.

    Returns None if not every node has sent everything, because a part of the files is not a state that a run was in.
    """
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
    """Returns size and time of a file, which change with a write."""
    about = os.stat(file)
    return about.st_size, about.st_mtime_ns
