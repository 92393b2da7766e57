"""Copies the database and the artifacts into a new folder while the service runs: `python -m service backup FOLDER`."""

from __future__ import annotations

import errno
import logging
import os
import shutil
import sqlite3
import subprocess
from contextlib import closing, suppress
from pathlib import Path

from sqlalchemy import make_url

from footplate.contract.errors import FootplateError
from footplate.contract.ids import uuid7
from service.settings import ServiceSettings

UNFINISHED = ".tmp-*"
"""The names of folders that a save or an upload is still writing. They are not copied."""
NO_LINKS = {errno.EXDEV, errno.EPERM, errno.EOPNOTSUPP, errno.EMLINK}
"""The errors of file systems that cannot make a hard link to this file."""

log = logging.getLogger(__name__)


class CannotBackUp(FootplateError):
    """The error that says why no backup was made. An incomplete backup is deleted."""


def back_up(settings: ServiceSettings, folder: Path) -> None:
    """Makes a complete backup in `folder`, or none.

    The database is copied first. Files are written before their rows, so the later copy of the artifacts has every file
    of the copied rows.
    """
    if folder.exists():
        raise CannotBackUp(
            f"cannot back up to {folder}, because it exists",
            hint="name a new folder, because each backup needs its own",
        )
    if folder.absolute().is_relative_to(settings.artifacts_path):
        raise CannotBackUp(
            f"cannot back up to {folder}, because it lies in the artifact store",
            hint="name a folder beside the store, on the same file system",
        )
    if isinstance(settings.store, Path) and not settings.store.is_dir():
        raise CannotBackUp(
            f"the artifact store {settings.artifacts_path} does not exist",
            hint="set FOOTPLATE_HOME or FOOTPLATE_ARTIFACTS as for the service",
        )
    scratch = folder.with_name(f".tmp-{folder.name}-{uuid7()}")
    # Only this user may read the folder, because it contains the whole database.
    scratch.mkdir(mode=0o700, parents=True)
    try:
        _copy_database(settings.database_url, scratch)
        if isinstance(settings.store, Path):
            _copy_tree(settings.store, scratch / "artifacts")
        scratch.rename(folder)
    except OSError as error:
        raise CannotBackUp(
            f"{error.filename or folder} cannot be backed up to {folder}: {error.strerror or error}",
            hint=f"free space on its file system, and let this user read the artifact store and write {folder}",
        ) from error
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    if isinstance(settings.store, Path):
        log.info("%s contains the database and the artifacts", folder)
    else:
        log.info("%s contains the database without the artifacts: copy the bucket %s now", folder, settings.store)


def _copy_database(url: str, folder: Path) -> None:
    database_url = make_url(url)
    if database_url.get_backend_name() == "sqlite":
        _copy_sqlite(Path(database_url.database or ""), folder / "footplate.db")
        return
    dump_url = database_url.set(drivername="postgresql", password=None).render_as_string()
    password = {} if database_url.password is None else {"PGPASSWORD": str(database_url.password)}
    dump = ["pg_dump", "--format=custom", f"--file={folder / 'footplate.dump'}", dump_url]
    try:
        process = subprocess.run(dump, env=os.environ | password, capture_output=True, text=True, check=False)
    except FileNotFoundError as error:
        raise CannotBackUp(
            "pg_dump is not on PATH",
            hint="install PostgreSQL's client programs, at least of the server's version",
        ) from error
    if process.returncode:
        raise CannotBackUp(f"pg_dump failed: {process.stderr.strip()}", hint="fix the cause, and run this again")


def _copy_sqlite(source: Path, target: Path) -> None:
    try:
        with closing(sqlite3.connect(f"{source.absolute().as_uri()}?mode=ro", uri=True)) as database:
            database.execute("VACUUM INTO ?", [os.fspath(target)])
    except sqlite3.Error as error:
        raise CannotBackUp(
            f"the database {source} cannot be copied: {error}",
            hint="set FOOTPLATE_HOME or FOOTPLATE_DATABASE as for the service",
        ) from error


def _copy_tree(source: Path, target: Path) -> None:
    """Makes hard links to all files below a folder. Files that are deleted meanwhile are left out."""
    target.mkdir()
    try:
        entries = list(os.scandir(source))
    except FileNotFoundError:
        return
    for entry in entries:
        path = Path(entry.path)
        if path.match(UNFINISHED):
            continue
        if entry.is_dir(follow_symlinks=False):
            _copy_tree(path, target / entry.name)
        else:
            with suppress(FileNotFoundError):
                _link_or_copy(path, target / entry.name)


def _link_or_copy(source: Path, target: Path) -> None:
    try:
        os.link(source, target, follow_symlinks=False)
    except OSError as error:
        if error.errno not in NO_LINKS:
            raise
        shutil.copy2(source, target, follow_symlinks=False)
