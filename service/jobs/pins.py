"""Gives the files of a pinned checkpoint a second name, a hard link, so that they stay if training deletes them.

Training deletes old checkpoints by itself, perhaps at the moment in which a user pins one. So each file is linked into
a folder that only the service uses. If training then deletes the first name, the content stays.

In a bucket only the service deletes files, and it reads the row first. There a pinned checkpoint stays where it is.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path

from footplate.contract.bucket import RemoteStore
from footplate.contract.errors import FootplateError
from footplate.contract.ids import CheckpointId, uuid7
from footplate.contract.layout import MANIFEST, pinned_folder
from footplate.contract.resources.artifacts import CheckpointFile
from footplate.contract.safe_paths import sync_folder
from service.artifact_files import Store
from service.jobs.manifest import CheckpointDamaged, opened, sealed
from service.store.checkpoints import DELETED
from service.store.row_types import CheckpointRow

LEFT_SECONDS = 24 * 3600.0
"""The age from which a pinned folder whose checkpoint is not pinned in SQL counts as left behind."""


class CannotPin(FootplateError):
    code = "cannot_pin"
    status = 409
    title = "The checkpoint cannot be pinned"


def link_pinned(artifacts: Store, row: CheckpointRow) -> str:
    """Makes a hard link to each file of a checkpoint, and returns the folder of the links in the artifact store.

    In a bucket, makes nothing and returns the present path. Raises NotFound, CheckpointDamaged and CannotPin. If a
    request that unpins the checkpoint has deleted the links meanwhile, the folder is missing.
    """
    files = sealed(artifacts, row)
    if isinstance(artifacts, RemoteStore):
        return row.path
    place = pinned_folder(row.job_id, row.id, row.step)
    folder = artifacts / place
    if row.path == str(place) or folder.exists():
        return str(place)
    scratch = folder.parent / f".tmp-{uuid7()}"
    try:
        for file in files:
            _link(artifacts, row, file, scratch / file.path)
        for path in {scratch / file.path for file in files}:
            sync_folder(path.parent)
        scratch.rename(folder)
        sync_folder(folder.parent)
    except OSError as error:
        if folder.exists() or isinstance(error, FileNotFoundError):
            return str(place)
        raise CannotPin(
            f"hard links to the files of checkpoint {row.id} cannot be made: {error.strerror or error}",
            hint="use a file system with hard links for the artifact store, and let the service write there",
        ) from error
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return str(place)


def _link(artifacts: Path, row: CheckpointRow, sealed_file: CheckpointFile, target: Path) -> None:
    with opened(artifacts, row, sealed_file) as file:
        target.parent.mkdir(parents=True, exist_ok=True)
        os.link(artifacts / row.path / sealed_file.path, target, follow_symlinks=False)
        # The link is made by name, and training may have replaced the file since `opened` checked it.
        if not os.path.samestat(os.fstat(file.fileno()), os.lstat(target)):
            raise CheckpointDamaged(f"checkpoint {row.id}: {sealed_file.path} was changed while it was pinned")


def has_links(artifacts: Store, folder: str) -> bool:
    """Returns True if a folder that `link_pinned` has made still has its hard links. A bucket needs no links."""
    return isinstance(artifacts, RemoteStore) or (artifacts / folder / MANIFEST).exists()


def path_before_pin(artifacts: Store, row: CheckpointRow) -> str | None:
    """Returns the path that a pinned checkpoint had before, if its files are still there, else None."""
    if row.pinned_from is None or row.pinned_from == row.path or isinstance(artifacts, RemoteStore):
        return None
    old_manifest, new_manifest = (artifacts / path / MANIFEST for path in (row.pinned_from, row.path))
    try:
        return row.pinned_from if os.path.samefile(old_manifest, new_manifest) else None
    except OSError:
        return None


def remove(artifacts: Store, row: CheckpointRow) -> None:
    """Deletes the hard links to the files of a checkpoint that is no longer pinned."""
    if isinstance(artifacts, RemoteStore):
        return
    shutil.rmtree((artifacts / pinned_folder(row.job_id, row.id, row.step)).parent, ignore_errors=True)


def prune_pins(artifacts: Store, row_of: Callable[[CheckpointId], CheckpointRow | None]) -> None:
    """Removes pinned folders that a process left when it died while it pinned or unpinned.

    A folder stays if it may hold the only copy. So a folder without a row in SQL stays, too: SQL may have been restored
    from a backup that is older than the checkpoint.
    """
    if isinstance(artifacts, RemoteStore):
        return
    horizon = time.time() - LEFT_SECONDS
    for folder in artifacts.glob("jobs/*/pinned/*"):
        row = row_of(CheckpointId(folder.name)) if folder.stat().st_mtime < horizon else None
        if row is None or (row.is_in_pinned_folder and row.status != DELETED):
            continue
        if row.status == DELETED or (artifacts / row.path).is_dir():
            shutil.rmtree(folder, ignore_errors=True)
