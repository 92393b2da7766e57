"""Checks that an attempt reads the same files as the attempt whose checkpoint it continues.

Training on other rows would work without an error, but the run could not be repeated. Each attempt records a
fingerprint of its files, and the next one compares. Large files are sampled: a change that keeps the sizes and misses
every sample is not detected.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from footplate.contract.errors import DatasetError
from footplate.contract.host.file_roots import Files

RECORD = "data.json"
"""The file in the attempt's folder that holds the fingerprints of its data."""
BLOCK, BLOCKS = 1 << 16, 1024
"""The bytes of a block, and the most blocks that are read, which are 64 MiB. Smaller data is read completely."""

Fingerprints = dict[str, str]


def fingerprints(files: Files) -> Fingerprints:
    """Returns a text such as `3 files of 1,234 bytes, sha256 …` for the files of each name in a spec."""
    try:
        return {name: _fingerprint([Path(path) for path in paths]) for name, paths in files.items()}
    except OSError as error:
        raise DatasetError(f"{error.filename} cannot be read: {error.strerror}") from error


def _fingerprint(paths: list[Path]) -> str:
    files = [
        file for path in paths for file in (sorted(filter(Path.is_file, path.rglob("*"))) if path.is_dir() else [path])
    ]
    sizes = [path.stat().st_size for path in files]
    stride = max(1, -(-sum(sizes) // (BLOCK * BLOCKS)))
    digest = hashlib.sha256()
    block = 0
    for path, size in zip(files, sizes, strict=True):
        digest.update(f"{path.name} {size}\n".encode())
        blocks = -(-size // BLOCK)
        with path.open("rb") as file:
            for number in range(-block % stride, blocks, stride):
                file.seek(number * BLOCK)
                digest.update(file.read(BLOCK))
        block += blocks
    count = f"{len(files):,} files" if len(files) != 1 else "a file"
    return f"{count} of {sum(sizes):,} bytes, sha256 {digest.hexdigest()[:16]}"


def write_record(folder: Path, current_prints: Fingerprints) -> None:
    (folder / RECORD).write_text(json.dumps(current_prints, indent=1))


def require_same(earlier_folder: Path, current_prints: Fingerprints) -> None:
    """Raises DatasetError if a fingerprint differs from the record in `earlier_folder`, an earlier attempt's folder.

    If that folder has no record, nothing is compared.
    """
    try:
        earlier_prints = json.loads((earlier_folder / RECORD).read_text())
    except (OSError, ValueError):
        return
    for name, fingerprint in current_prints.items():
        if (earlier_print := earlier_prints.get(name, fingerprint)) != fingerprint:
            raise DatasetError(
                f"{name} has changed: the checkpoint was trained on {earlier_print}, and now it is {fingerprint}",
                hint="restore the old files and resume the job, or fork the job to continue from its checkpoint with "
                "the new files",
            )
