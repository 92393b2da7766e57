"""python -m service backup FOLDER: the database and the artifacts, while both are written."""

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
"""What a save or an upload that still goes on calls its folder: it is gone, or has another name, in a moment."""
NO_LINKS = {errno.EXDEV, errno.EPERM, errno.EOPNOTSUPP, errno.EMLINK}
"""What file systems say that have no second names to give, or none for this file there."""

log = logging.getLogger(__name__)


class CannotBackUp(FootplateError):
    """There is no backup, and no half of one either."""


def back_up(settings: ServiceSettings, folder: Path) -> None:
    """All of it stands in `folder`, or there is none. The database first: a file is there before the row that names
    it, so artifacts that are younger have every file that the database knows of."""
    if folder.exists():
        raise CannotBackUp(f"{folder} exists", hint="name a folder that does not: each backup gets its own")
    if folder.absolute().is_relative_to(settings.artifacts_path):
        raise CannotBackUp(f"{folder} lies in the artifact store", hint="name one beside it, on the same file system")
    if isinstance(settings.store, Path) and not settings.store.is_dir():
        raise CannotBackUp(
            f"the artifact store {settings.artifacts_path} is not there",
            hint="FOOTPLATE_HOME or FOOTPLATE_ARTIFACTS must name the one that the service uses",
        )
    scratch = folder.with_name(f".tmp-{folder.name}-{uuid7()}")
    # All that the database knows lies in it: for nobody else.
    scratch.mkdir(mode=0o700, parents=True)
    try:
        _copy_database(settings.database_url, scratch)
        if isinstance(settings.store, Path):
            _copy_tree(settings.store, scratch / "artifacts")
        scratch.rename(folder)
    except OSError as error:
        raise CannotBackUp(
            f"{error.filename or folder} cannot be backed up to {folder}: {error.strerror or error}",
            hint="the folder's file system needs room, and this user the right to read the store and to write there",
        ) from error
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    if isinstance(settings.store, Path):
        log.info("%s has the database and the artifacts", folder)
    else:
        log.info("%s has the database. The artifacts stay where they are: copy %s now", folder, settings.store)


def _copy_database(url: str, folder: Path) -> None:
    parsed = make_url(url)
    if parsed.get_backend_name() == "sqlite":
        _copy_sqlite(Path(parsed.database or ""), folder / "footplate.db")
        return
    plain = parsed.set(drivername="postgresql", password=None).render_as_string()
    password = {} if parsed.password is None else {"PGPASSWORD": str(parsed.password)}
    dump = ["pg_dump", "--format=custom", f"--file={folder / 'footplate.dump'}", plain]
    try:
        done = subprocess.run(dump, env=os.environ | password, capture_output=True, text=True, check=False)
    except FileNotFoundError as error:
        raise CannotBackUp(
            "pg_dump is not on PATH",
            hint="install PostgreSQL's client programs, of its server's version or a newer one",
        ) from error
    if done.returncode:
        raise CannotBackUp(f"pg_dump failed: {done.stderr.strip()}", hint="mend what it says, and run this again")


def _copy_sqlite(source: Path, target: Path) -> None:
    try:
        with closing(sqlite3.connect(f"{source.absolute().as_uri()}?mode=ro", uri=True)) as database:
            database.execute("VACUUM INTO ?", [os.fspath(target)])
    except sqlite3.Error as error:
        raise CannotBackUp(
            f"the database {source} cannot be copied: {error}",
            hint="FOOTPLATE_HOME or FOOTPLATE_DATABASE must name the one that the service uses",
        ) from error


def _copy_tree(source: Path, target: Path) -> None:
    """Names for what stands. What is rotated away while we are at it is not missed: the database knows newer ones."""
    target.mkdir()
    try:
        there = list(os.scandir(source))
    except FileNotFoundError:
        return
    for entry in there:
        path = Path(entry.path)
        if path.match(UNFINISHED):
            continue
        if entry.is_dir(follow_symlinks=False):
            _copy_tree(path, target / entry.name)
        else:
            with suppress(FileNotFoundError):
                _copy_file(path, target / entry.name)


def _copy_file(source: Path, target: Path) -> None:
    try:
        os.link(source, target, follow_symlinks=False)
    except OSError as error:
        if error.errno not in NO_LINKS:
            raise
        shutil.copy2(source, target, follow_symlinks=False)
