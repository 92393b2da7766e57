"""Is the database at the version that this code was written for, and make it so."""

from __future__ import annotations

from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, create_engine

import service

MIGRATIONS = Path(service.__file__).parent.parent / "migrations"


def migrate(url: str, revision: str = "head") -> None:
    """Brings the schema to `revision`, up or down; running it twice is harmless."""
    config = _config(url)
    if _is_below(config, url, revision):
        command.upgrade(config, revision)
    else:
        command.downgrade(config, revision)


def schema_is_current(conn: Connection) -> bool:
    return MigrationContext.configure(conn).get_current_revision() == _newest()


def is_reachable(conn: Connection) -> bool:
    conn.exec_driver_sql("SELECT 1")
    return True
