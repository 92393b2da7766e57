"""The files of an attempt beside its checkpoints, and their layout in a bucket.

A single node uploads its files as they are. For a script, it uploads a last file, the mark that all files are there.
Several nodes share no folder, so each node uploads its own files:

    outputs/…            as on the node; of two files with one path, the last one uploaded stays
    …                    files of the first node
    .nodes/2/…           files of node 2
    .nodes/before/…      files that were there at the start, and that the first node has not changed
    .nodes/2-of-4        the mark that node 2 has uploaded everything

The next attempt of a script starts with the files of its last attempt. The files of all nodes go into one folder, which
is the same on every node. Of two files with one path, the first node's is used.

The job's copies of a script's checkpoints are uploaded with their events, and are left out here.

Most files of a script are also outputs, as hard links. A single node uploads these only once, below outputs/, and lists
their paths in the mark.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from footplate.contract import layout
from footplate.contract.bucket import RemoteStore, do_at_once, stays_inside
from footplate.contract.host.artifacts import STAGE, AttemptFiles
from footplate.contract.messages import Grant
from footplate.contract.safe_paths import NOT_THERE, file_below

NODES, BEFORE = ".nodes", ".nodes/before"
FILES_AT_ONCE = 4
"""The number of files that a node uploads or downloads at once. Each upload of a large file holds 64 MiB in memory."""


class AttemptOutputs:
    """The upload of one attempt's files from one node, and the download of the files of the attempt before it."""

    def __init__(self, store: RemoteStore, grant: Grant, files: AttemptFiles, *, is_script: bool) -> None:
        self._store, self._grant, self._files, self._folder = store, grant, files, files.folder
        self._is_script = is_script
        self._place = str(layout.attempt_folder(grant.job, grant.attempt))
        self._fetched: dict[str, tuple[int, int]] = {}
        """Size and time of each file that `fetch` has put into the folder."""
        self._links: list[str] = []
        """Paths of files that were uploaded only below outputs/, where they have a hard link."""

    def fetch(self, attempt: int, report: Callable[[str], None] | None) -> bool:
        """Downloads an earlier attempt's files. Returns False if a node did not upload all of them."""
        place = str(layout.attempt_folder(self._grant.job, attempt))
        paths = [file.path for file in self._store.files(place) if stays_inside(file.path)]
        files = merged_paths(paths, self._grant.nodes)
        if files is None and report is not None:
            report(f"the files in {place} are not used, because not all of them were uploaded")

        def fetch_file(path_and_key: tuple[str, str]) -> None:
            path, key = path_and_key
            file = self._folder / path
            with suppress(FileNotFoundError):
                self._store.fetch(f"{place}/{key}", file)
                self._fetched[path] = _size_and_time(file)

        do_at_once(fetch_file, (files or {}).items(), FILES_AT_ONCE)
        if files and self._grant.nodes == 1:
            self._make_links(self._store.read(f"{place}/{_mark(0, 1)}"))
        return bool(files)

    def _make_links(self, mark: bytes) -> None:
        """Links outputs to their paths in the script's folder. `mark` is a JSON list of the paths."""
        for path in json.loads(mark or b"[]"):
            file = self._folder / path
            file.parent.mkdir(parents=True, exist_ok=True)
            with suppress(FileNotFoundError, FileExistsError):
                os.link(self._folder / layout.OUTPUTS / path, file)

    def files(self, is_skipped: Callable[[Path], bool]) -> Iterator[Path]:
        """Yields the attempt's regular files, without hidden folders.

        The folders at the top for which `is_skipped` returns True are left out, too. A copy of one further below, such
        as `results/best`, is not left out, because nothing else uploads that copy.
        """
        for parent, folders, names in os.walk(self._folder):
            at = Path(parent)
            is_top = at == self._folder
            folders[:] = sorted(
                name for name in folders if not (name.startswith(".") or (is_top and is_skipped(at / name)))
            )
            yield from (at / name for name in sorted(names) if (at / name).is_file() and not (at / name).is_symlink())

    def upload(self, file: Path) -> bool:
        """Uploads a file. Returns False if the file is gone, or if users' code has replaced it by a link."""
        try:
            descriptor = file_below(self._files.root, self._files.relative(file))
        except OSError as error:
            if error.errno not in NOT_THERE:
                raise
            return False
        if descriptor is None:
            return False
        path = str(file.relative_to(self._folder))
        try:
            if self._grant.nodes == 1 and self._is_output(descriptor, path):
                self._links.append(path)
            elif (key := self._key(path, was_fetched=self._was_fetched(descriptor, path))) is not None:
                self._store.put(Path(f"/proc/self/fd/{descriptor}"), f"{self._place}/{key}")
        finally:
            os.close(descriptor)
        return True

    def mark_complete(self) -> None:
        if self._is_script:
            mark = f"{self._place}/{_mark(self._grant.source, self._grant.nodes)}"
            self._store.write(json.dumps(self._links).encode(), mark)

    def _key(self, path: str, *, was_fetched: bool) -> str | None:
        """Returns the file's path in the bucket, or None if another node uploads it."""
        first, is_output = self._grant.source == 0, path.startswith(f"{layout.OUTPUTS}/")
        if self._grant.nodes == 1 or not (was_fetched or is_output):
            return path if first else f"{NODES}/{self._grant.source}/{path}"
        if not is_output:
            return f"{BEFORE}/{path}" if first else None
        # Another node may have uploaded a newer version of this output, which must stay.
        has_newer = was_fetched and (not first or self._store.has(f"{self._place}/{path}"))
        return None if has_newer else path

    def _was_fetched(self, descriptor: int, path: str) -> bool:
        """Returns True if a file came from the attempt before, and was not changed."""
        return self._fetched.get(path) == _size_and_time(descriptor)

    def _is_output(self, descriptor: int, path: str) -> bool:
        """Returns True if a script's opened file and the file at this path in outputs/ are one file, by a hard link."""
        with suppress(OSError):
            status, output_status = os.fstat(descriptor), os.lstat(self._files.outputs / path)
            return self._is_script and os.path.samestat(status, output_status)
        return False


def merged_paths(uploaded_paths: Iterable[str], nodes: int) -> dict[str, str] | None:
    """Merges the files that the nodes of an attempt uploaded into one folder for the next attempt.

    Returns the path in the bucket of each file, by its path in that folder. Returns None if a node has not uploaded all
    of its files, because the next attempt could not continue correctly without them.
    """
    paths = set(uploaded_paths)
    if paths and not paths.issuperset(_mark(node, nodes) for node in range(nodes)):
        return None
    files: dict[str, str] = {}
    for layer in (BEFORE, *(f"{NODES}/{node}" for node in range(nodes - 1, 0, -1))):
        files |= {path.removeprefix(f"{layer}/"): path for path in paths if path.startswith(f"{layer}/")}
    files |= {path: path for path in paths if not path.startswith(f"{NODES}/")}
    copies = {path.removesuffix(f"/{STAGE}") for path in files if path.endswith(f"/{STAGE}")}
    return {path: where for path, where in files.items() if path.partition("/")[0] not in copies}


def _mark(node: int, nodes: int) -> str:
    return f"{NODES}/{node}-of-{nodes}"


def _size_and_time(file: Path | int) -> tuple[int, int]:
    """Returns the size and the modification time of a file. A write changes one of them."""
    about = os.stat(file)
    return about.st_size, about.st_mtime_ns
