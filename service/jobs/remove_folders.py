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

RETRY_SECONDS = 60.0
"""The wait after which control tries again to delete a folder that could not be deleted."""

Unneeded = tuple[JobId, str]
"""A checkpoint to delete: its job, and its path in the artifact store."""


def delete_folder(store: Store, path: str) -> str | None:
    """Deletes a folder as far as possible. Returns None, or the reason why the folder still exists.

    No link in the path is followed, because training may have put a link there that leaves the artifact store.
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
        self._retry_at: dict[Unneeded, float] = {}
        """The time of the next try, for each folder that could not be deleted."""

    @property
    def stuck(self) -> int:
        return len(self._retry_at)

    def remove(self, artifacts: Store, unneeded: Collection[Unneeded], clock: float) -> list[Unneeded]:
        """Deletes the folders of all unneeded checkpoints, and returns those that no longer exist.

        If the artifact store itself is missing, nothing is deleted and [] is returned.
        """
        self._retry_at = {key: at for key, at in self._retry_at.items() if key in unneeded}
        if not _is_there(artifacts):
            return []
        due = [key for key in unneeded if clock >= self._retry_at.get(key, clock)]
        return [key for key in due if self._is_removed(key, artifacts, clock)]

    def _is_removed(self, key: Unneeded, artifacts: Store, clock: float) -> bool:
        _, path = key
        # Training may have put a link into the path that points outside of the store.
        is_link = isinstance(artifacts, Path) and (artifacts / path).resolve() != artifacts.resolve() / path
        why = None if is_link else delete_folder(artifacts, path)
        if why is None:
            self._retry_at.pop(key, None)
            return True
        if key not in self._retry_at:
            log.warning("%s is not needed any more and cannot be deleted: %s; control tries again", path, why)
        self._retry_at[key] = clock + RETRY_SECONDS
        return False


def _is_there(store: Store) -> bool:
    return store.trouble() is None if isinstance(store, RemoteStore) else (store / PROBE).exists()
