"""Deletes folders of the artifact store. A failure is logged once, with the reason, and tried again each minute."""

from __future__ import annotations

import errno
import logging
import shutil
from collections.abc import Collection
from pathlib import Path

from footplate.contract.bucket import RemoteStore
from footplate.contract.ids import JobId
from footplate.contract.layout import PROBE
from footplate.contract.safe_paths import folder_below
from service.artifact_files import Store

log = logging.getLogger("footplate.control")

AGAIN_SECONDS = 60.0
"""The wait after which control tries again to delete a folder that could not be deleted."""

Going = tuple[JobId, str]
"""A checkpoint's job, and its path in the artifact store."""


def why_it_stays(store: Store, path: str) -> str | None:
    """Deletes a folder as far as possible. Returns the reason if the folder still exists, or None.

    No link in the path is followed, because training may have put a link there that points outside of the store.
    """
    parent, _, name = path.rpartition("/")
    try:
        if isinstance(store, RemoteStore):
            store.remove(path)
            return None
        with folder_below(store, parent) as at:
            shutil.rmtree(name, ignore_errors=True, dir_fd=at)
            shutil.rmtree(name, dir_fd=at)
    except OSError as error:
        return None if error.errno in (errno.ENOENT, errno.ENOTDIR) else str(error)
    return None


class Remover:
    """Deletes checkpoints that no job needs to keep, and remembers failures."""

    def __init__(self) -> None:
        self._again_at: dict[Going, float] = {}
        """The time of the next try, for each folder that could not be deleted."""

    @property
    def stuck(self) -> int:
        return len(self._again_at)

    def remove(self, artifacts: Store, going: Collection[Going], clock: float) -> list[Going]:
        """Deletes folders of checkpoints and returns those that no longer exist. `going` has all that must be deleted.

        If the store itself is missing, nothing is deleted and [] is returned.
        """
        self._again_at = {key: at for key, at in self._again_at.items() if key in going}
        if not _is_there(artifacts):
            return []
        root = artifacts if isinstance(artifacts, RemoteStore) else artifacts.resolve()
        due = [key for key in going if clock >= self._again_at.get(key, clock)]
        return [key for key in due if self._is_removed(key, root, clock)]

    def _is_removed(self, key: Going, root: Store, clock: float) -> bool:
        _, path = key
        # Training may have put a link into the path that points outside of the store.
        is_link = isinstance(root, Path) and (root / path).resolve() != root / path
        why = None if is_link else why_it_stays(root, path)
        if why is None:
            self._again_at.pop(key, None)
            return True
        if key not in self._again_at:
            log.warning("%s is not needed any more and cannot be deleted: %s; control tries again", path, why)
        self._again_at[key] = clock + AGAIN_SECONDS
        return False


def _is_there(store: Store) -> bool:
    return store.trouble() is None if isinstance(store, RemoteStore) else (store / PROBE).exists()
