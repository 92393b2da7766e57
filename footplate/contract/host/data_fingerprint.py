"""Whether files that an attempt reads are those of the attempt whose checkpoint it continues.

Other rows would train without a word, and the run would be none that anybody could repeat. Each attempt writes down
what its files looked like; who continues from its checkpoint compares. Large ones by samples of their bytes: a change
that leaves each size as it was, and touches none of them, is not seen.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from footplate.contract.errors import DatasetError
from footplate.contract.host.file_roots import Files

RECORD = "data.json"
"""In the attempt's folder."""
BLOCK, BLOCKS = 1 << 16, 1024
"""At most so much is read, 64 MiB, however many files a name stands for; what is smaller is read whole."""

Looks = dict[str, str]


def looks(files: Files) -> Looks:
    """Of each name that a spec reads: `3 files of 1,234 bytes, sha256 …`, on every node that has the same the same."""
    try:
        return {name: _look([Path(path) for path in paths]) for name, paths in files.items()}
    except OSError as error:
        raise DatasetError(f"{error.filename} cannot be read: {error.strerror}") from error


def _look(paths: list[Path]) -> str:
    files = [file for path in paths for file in (_below(path) if path.is_dir() else [path])]
    sizes = [path.stat().st_size for path in files]
    stride = max(1, -(-sum(sizes) // (BLOCK * BLOCKS)))
    seen = hashlib.sha256()
    block = 0
    for path, size in zip(files, sizes, strict=True):
        seen.update(f"{path.name} {size}\n".encode())
        blocks = -(-size // BLOCK)
        with path.open("rb") as file:
            for number in range(-block % stride, blocks, stride):
                file.seek(number * BLOCK)
                seen.update(file.read(BLOCK))
        block += blocks
    count = f"{len(files):,} files" if len(files) != 1 else "a file"
    return f"{count} of {sum(sizes):,} bytes, sha256 {seen.hexdigest()[:16]}"


def _below(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def write_down(folder: Path, now: Looks) -> None:
    (folder / RECORD).write_text(json.dumps(now, indent=1))


def require_same(before: Path, now: Looks) -> None:
    """`before`: the folder of the attempt that is continued. One that wrote nothing down is taken at its word."""
    try:
        known = json.loads((before / RECORD).read_text())
    except (OSError, ValueError):
        return
    for name, look in now.items():
        if known.get(name, look) != look:
            raise DatasetError(
                f"{name} has changed: the checkpoint was trained on {known[name]}, and now it is {look}",
                hint="put back what was there and resume; or fork the job, to go on from its checkpoint with what is "
                "there now",
            )
