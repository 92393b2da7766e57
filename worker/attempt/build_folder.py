"""The folder in which a bundle's extensions are built, if each attempt has a user of its own.

    extensions/<bundle>/code           the bundle's files, which belong to root and are the same for every attempt
    extensions/<bundle>/<project>/     the builds of a project, which belong to one attempt's user at a time

If an attempt of the project builds from this bundle already, a second one builds in its own temporary folder.
"""

from __future__ import annotations

import os
from hashlib import sha256
from pathlib import Path, PurePosixPath

from footplate.contract.host.bundle_files import copy_to_fixed_path, unpack
from footplate.contract.host.environment import EXTENSIONS, EXTENSIONS_VARIABLE, built_for, extensions_owner
from footplate.contract.host.linux import try_lock
from footplate.contract.host.scratch import remove
from footplate.contract.host.user import User, change_owner, close_to_lists, make_passable_folders, make_writable_folder
from footplate.contract.spec import JobSpec


class BuildFolder:
    """The folder in which one attempt builds extensions, and its bundle's files beside that folder."""

    def __init__(self, root: Path, spec: JobSpec, project: str, user: User) -> None:
        self._root, self._spec, self._project, self._user = root, spec, project, user
        self._lock: int | None = None
        self.folder: Path | None = None
        """The folder that belongs to the attempt's user for now. None: the attempt builds in its temporary folder."""

    def environment(self, scratch: str) -> dict[str, str]:
        """Makes the build folder, and returns the variable that names it. A job without extensions needs no folder."""
        if (owner := extensions_owner(self._spec)) is None:
            return {}
        owner_folder = PurePosixPath(EXTENSIONS, owner)
        builds = self._root / owner_folder
        if builds.exists() and builds.lstat().st_uid != os.geteuid():
            # These files belong to a user that all attempts shared, so code of any job may have changed them.
            remove(builds)
        make_passable_folders(self._root, owner_folder)
        close_to_lists(self._root, [EXTENSIONS])
        close_to_lists(self._root / EXTENSIONS, [owner])
        builds.touch()
        folder = Path(scratch, EXTENSIONS)
        name = sha256(self._project.encode()).hexdigest()[:16]
        if self._is_free(builds / f"{name}.lock"):
            self.folder = folder = make_writable_folder(self._root, owner_folder / name, self._user)
            change_owner(folder, os.geteuid(), self._user.uid, self._user.gid)
        return {EXTENSIONS_VARIABLE: str(folder / built_for())}

    def unpacked(self, artifacts: Path, scratch: str) -> Path | None:
        """Unpacks the bundle, and returns its folder. Returns None without a bundle, and for a script.

        A script's training process unpacks the bundle into its working folder. Raises OwnCodeError for a bad bundle.
        """
        if (code := self._spec.code) is None or self._spec.is_script:
            return None
        unpacked = unpack(code.bundle, artifacts, Path(scratch))
        copy = copy_to_fixed_path(unpacked, self._root / EXTENSIONS / code.bundle)
        if copy.folder != unpacked.folder:
            remove(unpacked.folder)
        return copy.folder

    def close(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _is_free(self, path: Path) -> bool:
        lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        if try_lock(lock):
            self._lock = lock
        else:
            os.close(lock)
        return self._lock is not None
