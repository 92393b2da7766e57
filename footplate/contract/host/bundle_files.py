"""Verifies and unpacks a bundle on a node, and copies it to a fixed path for compiled extensions.

Each training process unpacks the bundle into its own temporary folder, in `runtime/run.py`, or in `runtime/own_loop.py`
for a script. If each attempt has a user of its own, the supervisor unpacks the bundle, except for a script. That user
must not change the copy at the fixed path (`BuildFolder` in `worker/attempt/local_ranks.py`).

`scratch.py` makes and deletes the temporary folders.
"""

from __future__ import annotations

import fcntl
import filecmp
import os
import shutil
import zipfile
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from footplate.contract import layout
from footplate.contract.bundles import InvalidBundle, look_into, modules
from footplate.contract.errors import OwnCodeError
from footplate.contract.host.artifacts import FileChanged, open_stored
from footplate.contract.host.scratch import remove

FOLDER = "code"
"""The folder of a bundle's files, below an attempt's temporary folder."""
UNPACKED_AT = 315_532_800
"""The modification time of unpacked files: the beginning of 1980, the earliest in a zip. Compiled files are newer."""
_PIECE = 1024 * 1024
CODE, LOCK = "code", "code.lock"


@dataclass(frozen=True, slots=True)
class Bundle:
    """A bundle whose files are unpacked."""

    sha256: str
    folder: Path
    paths: tuple[str, ...]

    @property
    def modules(self) -> list[str]:
        return modules(self.paths)


def unpacked(sha256: str, folder: Path) -> Bundle:
    """Returns the bundle in a folder into which the supervisor has unpacked it."""
    paths = sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
    return Bundle(sha256, folder, tuple(paths))


def unpack(sha256: str, artifacts: Path, scratch: Path) -> Bundle:
    """Unpacks a bundle of the artifact store into a new, read-only folder below `scratch`.

    Raises OwnCodeError if the store does not have the bundle, or if its bytes do not have this sha256.
    """
    folder = scratch / FOLDER
    try:
        with open_stored(artifacts / layout.bundle_file(sha256), sha256) as archive:
            entries = look_into(archive, os.fstat(archive.fileno()).st_size)
            folder.mkdir(parents=True)
            with zipfile.ZipFile(archive) as zip_file:
                for entry in entries:
                    path = folder / entry.path
                    path.parent.mkdir(parents=True, exist_ok=True)
                    with zip_file.open(entry.path) as source, path.open("xb") as target:
                        shutil.copyfileobj(source, target, _PIECE)
                    # Ninja rebuilds what is older than its sources, so these have the same old time in each attempt.
                    os.utime(path, (UNPACKED_AT, UNPACKED_AT))
                    path.chmod(0o555 if entry.is_executable else 0o444)
    except FileChanged as error:
        raise OwnCodeError(
            f"bundle {error}", hint=f"DELETE /bundles/{sha256}, POST the zip to /bundles again, then resume the job"
        ) from error
    except FileNotFoundError as error:
        raise OwnCodeError(
            f"bundle {sha256} is not in the artifact store",
            hint="POST the same zip to /bundles again, then resume the job",
        ) from error
    except InvalidBundle as error:
        raise OwnCodeError(f"bundle {sha256} cannot be used: {error.message}") from error
    for parent, _, _ in os.walk(folder, topdown=False):
        os.chmod(parent, 0o555)
    return Bundle(sha256, folder, tuple(entry.path for entry in entries))


def copy_to_fixed_path(bundle: Bundle, folder: Path) -> Bundle:
    """Copies the bundle to the same path below `folder` in every attempt, and returns the copy.

    Each attempt unpacks to another folder, but Ninja recognises sources by path and time. If the copy fails, as on a
    full disk, the unpacked bundle is returned, and its extensions are built again.
    """
    place = folder / CODE
    with suppress(OSError), os.fdopen(lock(folder / LOCK), "rb"):
        if not _is_copy(bundle, place):
            remove(place)
            shutil.copytree(bundle.folder, place)
        return replace(bundle, folder=place)
    return bundle


def _is_copy(bundle: Bundle, place: Path) -> bool:
    """Compares every byte with the bundle, because other jobs' code may run as the user that owns the copy."""
    copied_paths = {str(path.relative_to(place)) for path in place.rglob("*") if not path.is_dir() or path.is_symlink()}
    _, changed_paths, missing_paths = filecmp.cmpfiles(bundle.folder, place, bundle.paths, shallow=False)
    return copied_paths == set(bundle.paths) and not changed_paths and not missing_paths


def lock(path: Path) -> int:
    """Waits for the lock on a file. The kernel releases the lock when the process that holds it is killed."""
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        with suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(descriptor), os.stat(path)):
                return descriptor
        # The last holder of the lock has removed the file, so another file may have this name by now.
        os.close(descriptor)
