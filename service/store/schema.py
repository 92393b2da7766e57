"""Checks that the database has the version that this code needs, and migrates it."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, inspect, text

import service
from footplate.contract.errors import SettingsError
from service.store.database import foreign_errors
from service.store.engines import Engines

MIGRATIONS = Path(service.__file__).parent.parent / "migrations"


def migrate(url: str, revision: str = "head") -> None:
    """Migrates the schema to `revision`, up or down. Running it twice is harmless."""
    # Imported here, because a service that only checks its schema starts faster without Alembic.
    from alembic import command

    config = _config(url)
    current, wanted = _current(url), _scripts().get_revision(revision)
    if current is not None and current > newest():
        raise SettingsError(
            f"the database is at version {current}, this Footplate knows {newest()}: {_remedy(current)}"
        )
    older = {script.revision for script in _scripts().iterate_revisions(current, "base")} if current else set()
    if revision == "base" or (wanted is not None and wanted.revision in older and wanted.revision != current):
        command.downgrade(config, revision)
    else:
        command.upgrade(config, revision)


def schema_is_current(conn: Connection) -> bool:
    return _revision(conn) == newest()


def require_current(conn: Connection) -> None:
    """Raises SettingsError with what to do, because a wrong schema would break a request."""
    revision = _revision(conn)
    if revision != newest():
        what = f"is at version {revision}" if revision else "has no tables of ours"
        raise SettingsError(f"the database {what}, this service needs {newest()}: {_remedy(revision)}")


def _remedy(found: str | None) -> str:
    # Versions are numbers of one width, so they compare as text.
    if found is None or found < newest():
        return "run `python -m service migrate`"
    return "a newer Footplate has migrated it; install that version here, or name another database"


@lru_cache
def newest() -> str:
    """Returns the newest revision by the names of its files. Asking Alembic costs every start a third of a second."""
    return max(path.name.partition("_")[0] for path in (MIGRATIONS / "versions").glob("[0-9]*_*.py"))


def _revision(conn: Connection) -> str | None:
    if not inspect(conn).has_table("alembic_version"):
        return None
    return conn.execute(text("SELECT version_num FROM alembic_version")).scalar()


def _current(url: str) -> str | None:
    engines = Engines(url, readers=1, writers=1)
    try:
        with foreign_errors(), engines.writer.connect() as conn:
            return _revision(conn)
    finally:
        engines.dispose()


@lru_cache
def _scripts() -> Any:
    from alembic.script import ScriptDirectory

    return ScriptDirectory(str(MIGRATIONS))


def _config(url: str) -> Any:
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS).replace("%", "%%"))
    config.attributes["url"] = url
    return config
