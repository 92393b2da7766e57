"""The folder in which a bundle's extensions are built, if each attempt has a user of its own.

    extensions/<bundle>/code           the bundle's files, which belong to root and are the same for every attempt
    extensions/<bundle>/<project>/     the builds of a project, which belong to one attempt's user at a time

If an attempt of the project builds from this bundle already, a second one builds in its own temporary folder.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path, PurePosixPath
from typing import Any

from footplate.contract import layout
from footplate.contract.host.bundle_files import FOLDER, at_its_place, unpack
from footplate.contract.host.environment import EXTENSIONS, EXTENSIONS_VARIABLE, built_for, extensions_owner
from footplate.contract.host.linux import try_lock
from footplate.contract.host.scratch import remove
from footplate.contract.host.user import User, change_owner, close_to_lists, make_passable_folders, make_writable_folder


class BuildFolder:
    """The build folder of one attempt."""

    def __init__(self, root: Path, spec: Mapping[str, Any], project: str, user: User) -> None:
        self._root, self._spec, self._project, self._user = root, spec, project, user
        self._lock: int | None = None
        self.folder: Path | None = None
        """The folder that is lent to the attempt's user.

        None: the attempt changes nothing outside its temporary folder.
        """

    def environment(self, scratch: str) -> dict[str, str]:
        """Returns the variable that names the build folder, for an attempt that may build extensions."""
        if (owner := extensions_owner(self._spec)) is None:
            return {}
        below = PurePosixPath(EXTENSIONS, owner)
        shelf = self._root / below
        if shelf.exists() and shelf.lstat().st_uid != os.geteuid():
            # Left by a node whose attempts shared one user, who may have written anything.
            remove(shelf)
        make_passable_folders(self._root, below)
        close_to_lists(self._root, [EXTENSIONS])
        close_to_lists(self._root / EXTENSIONS, [owner])
        shelf.touch()
        folder = Path(scratch, EXTENSIONS)
        name = sha256(self._project.encode()).hexdigest()[:16]
        if self._is_free(shelf / f"{name}.lock"):
            self.folder = folder = make_writable_folder(self._root, below / name, self._user)
            change_owner(folder, os.geteuid(), self._user.uid, self._user.gid)
        return {EXTENSIONS_VARIABLE: str(folder / built_for())}

    def unpacked(self, artifacts: Path, scratch: str) -> Path | None:
        """Returns the folder with the bundle's files, or None if the job has no bundle.

        A script's files are in its working folder. Raises OwnCodeError if the bundle cannot be used.
        """
        if not (code := self._spec.get("code")) or "script" in (self._spec.get("loop") or {}):
            return None
        shelf = self._root / EXTENSIONS / code["bundle"]
        fresh = unpack(code["bundle"], artifacts / layout.bundle_file(code["bundle"]), Path(scratch, FOLDER))
        placed = at_its_place(fresh, shelf)
        if placed.folder != fresh.folder:
            remove(fresh.folder)
        return placed.folder

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
