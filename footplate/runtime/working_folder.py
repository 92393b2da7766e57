"""Prepares a script's working folder with the bundle's files, and keeps what the script writes there as outputs.

`lay_out` runs in every rank before the script, `keep_outputs` in every rank after it. Ranks may share the folder, so
both may run several times at once, and neither replaces a file that is there.
"""

from __future__ import annotations

import os
import shutil
import zipfile
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from uuid import uuid4

from footplate.contract.errors import listing
from footplate.contract.host.artifacts import is_checkpoint_copy
from footplate.contract.host.bundle_files import Bundle
from footplate.contract.layout import OUTPUTS

MAX_FILES = 10_000
MAX_BYTES = 64 * 2**30
CACHES = "__pycache__"


def lay_out(bundle: Bundle, folder: Path) -> Bundle:
    """Copies the bundle's files into `folder`, writable, and returns the bundle with its new folder.

    A file that is there already stays. Another rank has copied it, or an earlier attempt has left it.
    """
    for path in bundle.paths:
        target = folder / path
        if not os.path.lexists(target):
            target.parent.mkdir(parents=True, exist_ok=True)
            temporary = target.with_name(f".laid-{uuid4().hex}")
            shutil.copyfile(bundle.folder / path, temporary)
            if os.access(bundle.folder / path, os.X_OK):
                readable = temporary.stat().st_mode & 0o777
                temporary.chmod(readable | (readable & 0o444) >> 2)
            with suppress(FileExistsError):
                os.link(temporary, target)
            temporary.unlink()
    return replace(bundle, folder=folder)


def keep_outputs(folder: Path, archive: Path) -> list[str]:
    """Links what the script has written below `folder` into its outputs. Returns sentences about files left out.

    Names that begin with a dot, `__pycache__`, links, and unchanged files of the bundle (`archive`) are not outputs.
    Nor are the job's own copies of the script's checkpoints. The outputs are hard links, so that a resumed attempt
    still finds the files at their place.
    """
    outputs, kept_files, kept_bytes, too_many = folder / OUTPUTS, 0, 0, 0
    shadowed: list[str] = []
    with zipfile.ZipFile(archive) as packed:
        # Files near the top come first, because a table of results matters more than the thousandth shard.
        for file in sorted(_written(folder), key=lambda file: (len(file.parts), file)):
            name = file.relative_to(folder).as_posix()
            # Another rank may remove the file between any two of the following statements.
            with suppress(FileNotFoundError):
                size, is_output = file.stat().st_size, name.startswith(f"{OUTPUTS}/")
                if _is_unchanged(file, packed, name):
                    if is_output:
                        file.unlink()
                elif is_output:
                    continue
                elif kept_files == MAX_FILES or kept_bytes + size > MAX_BYTES:
                    too_many += 1
                elif _linked(file, outputs / name):
                    kept_files, kept_bytes = kept_files + 1, kept_bytes + size
                else:
                    shadowed.append(name)
    return list(_sentences(shadowed, too_many))


def _sentences(shadowed: list[str], too_many: int) -> Iterator[str]:
    if shadowed:
        yield f"not among the outputs, because {OUTPUTS}/ has another file of the same name: {listing(shadowed, 5)}"
    if too_many:
        yield (
            f"{too_many} files of the working folder are not among the outputs: {MAX_FILES:,} files and "
            f"{MAX_BYTES // 2**30} GiB are kept. Files that the script writes to {OUTPUTS}/ are kept without a limit"
        )


def _written(folder: Path) -> Iterator[Path]:
    for parent, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not _is_left_out(Path(parent) / name))
        for name in sorted(names):
            file = Path(parent) / name
            if not name.startswith(".") and file.is_file() and not file.is_symlink():
                yield file


def _is_left_out(folder: Path) -> bool:
    return folder.name.startswith(".") or folder.name == CACHES or is_checkpoint_copy(folder)


def _is_unchanged(file: Path, packed: zipfile.ZipFile, name: str) -> bool:
    entry = packed.NameToInfo.get(name)
    return entry is not None and file.stat().st_size == entry.file_size and file.read_bytes() == packed.read(name)


def _linked(file: Path, target: Path) -> bool:
    """Makes a hard link. Returns False if a different file or a folder already has the target's name."""
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        os.link(file, target, follow_symlinks=False)
    except (FileExistsError, NotADirectoryError):
        return target.is_file() and os.path.samefile(file, target)
    return True
