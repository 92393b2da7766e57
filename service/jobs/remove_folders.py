"""Deletes folders. A failure is logged once, with the reason, and repeated less and less often."""

from __future__ import annotations

import errno
import logging
import shutil
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from footplate.contract.bucket import RemoteStore, StoreUnreachable
from footplate.contract.ids import JobId
from footplate.contract.layout import PROBE
from footplate.contract.safe_paths import folder_below
from service.artifact_files import Store

log = logging.getLogger("footplate.control")

FIRST_SECONDS, LONGEST_SECONDS = 2.0, 600.0
"""The wait before a folder that stayed is tried again, which doubles with each try."""

Going = tuple[JobId, str]
"""A checkpoint's job, and its path in the artifact store."""


def why_it_stays(root: Path, path: str) -> str | None:
    """Deletes a folder as far as possible. Returns the reason if it stays, or None.

    No link is followed, because training may put one on the way there meanwhile, to files that are not ours.
    """
    parent, _, name = path.rpartition("/")
    try:
        with folder_below(root, parent) as at:
            shutil.rmtree(name, ignore_errors=True, dir_fd=at)
            shutil.rmtree(name, dir_fd=at)
    except OSError as error:
        return None if error.errno in (errno.ENOENT, errno.ENOTDIR) else str(error)
    return None


def why_it_stays_there(store: Store, folder: str) -> str | None:
    """Does the same in either kind of store."""
    if not isinstance(store, RemoteStore):
        return why_it_stays(store, folder)
    try:
        store.remove(folder)
    except StoreUnreachable as error:
        return str(error)
    return None


@dataclass(slots=True)
class _Stay:
    again_at: float
    wait: float = FIRST_SECONDS


class Remover:
    """Deletes checkpoints that no job needs to keep, and remembers failures."""

    def __init__(self) -> None:
        self._stays: dict[Going, _Stay] = {}

    @property
    def stuck(self) -> int:
        return len(self._stays)

    def remove(self, artifacts: Store, going: Collection[Going], clock: float) -> list[Going]:
        """Returns those whose folders no longer exist. None of them if the store itself is missing."""
        self._stays = {key: stay for key, stay in self._stays.items() if key in going}
        if not _is_there(artifacts):
            return []
        root = artifacts if isinstance(artifacts, RemoteStore) else artifacts.resolve()
        return [key for key in going if self._is_due(key, clock) and self._is_removed(key, root, clock)]

    def _is_due(self, one: Going, clock: float) -> bool:
        stay = self._stays.get(one)
        return stay is None or clock >= stay.again_at

    def _is_removed(self, one: Going, root: Store, clock: float) -> bool:
        # Training may have put a link on the way there, to files that are not ours.
        is_link = isinstance(root, Path) and (root / one[1]).resolve() != root / one[1]
        why = None if is_link else why_it_stays_there(root, one[1])
        if why is None:
            self._stays.pop(one, None)
            return True
        stay = self._stays.get(one)
        if stay is None:
            stay = self._stays[one] = _Stay(clock)
            log.warning("%s is not kept any more and cannot be removed: %s; it is tried again", one[1], why)
        stay.again_at, stay.wait = clock + stay.wait, min(stay.wait * 2, LONGEST_SECONDS)
        return False


def _is_there(store: Store) -> bool:
    return store.trouble() is None if isinstance(store, RemoteStore) else (store / PROBE).exists()
