"""Checks that the database has the version that this code needs, creates the tables, and migrates older ones."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

from sqlalchemy import Column, Connection, MetaData, String, Table, insert, inspect, select
from sqlalchemy.schema import CreateIndex, CreateTable

import service
from footplate.contract.errors import SettingsError
from service.store.database import database_errors
from service.store.engines import Engines
from service.store.tables import metadata

MIGRATIONS = Path(service.__file__).parent.parent / "migrations"
VERSION = Table("alembic_version", MetaData(), Column("version_num", String(32), primary_key=True))
"""The table in which Alembic keeps the version."""


def migrate(url: str) -> None:
    """Creates the tables in an empty database, or upgrades an older version. Running it twice is harmless.

    An upgrade is one transaction: if it fails or is interrupted, the database keeps its older version.
    """
    version = _create_if_empty(url)
    if version not in versions():
        known_versions = ", ".join(versions())
        raise SettingsError(f"the database is at version {version}, not one of {known_versions}: {_remedy(version)}")
    if version != newest():
        # Imported here, because a service that only checks its schema starts faster without Alembic.
        from alembic import command
        from alembic.config import Config

        config = Config()
        config.set_main_option("script_location", str(MIGRATIONS).replace("%", "%%"))
        config.attributes["url"] = url
        with database_errors():
            command.upgrade(config, "head")


def _create_if_empty(url: str) -> str:
    """Creates all tables in one transaction if the database is empty. Returns the version of the database."""
    engines = Engines(url, readers=1, writers=1)
    try:
        with database_errors(), engines.writer.begin() as conn:
            if (version := _revision(conn)) is None:
                _require_utf8(conn)
                version = newest()
                _create_tables(conn)
                VERSION.create(conn)
                conn.execute(insert(VERSION), {"version_num": version})
            return version
    finally:
        engines.dispose()


def _require_utf8(conn: Connection) -> None:
    """Raises SettingsError if a PostgreSQL database cannot hold every text.

    PostgreSQL creates such databases if the machine has no locale.
    """
    if conn.dialect.name == "postgresql":
        encoding = conn.exec_driver_sql("SHOW server_encoding").scalar()
        if encoding != "UTF8":
            raise SettingsError(
                f"the database has the encoding {encoding}, which cannot hold every name and log line: "
                "create one with `CREATE DATABASE footplate TEMPLATE template0 ENCODING 'UTF8'`"
            )


def _create_tables(conn: Connection) -> None:
    """Creates all tables, and the indexes of each in the order of their names.

    SQLite uses the newest of several indexes that are equally good for a query, and `create_all` has no fixed order.
    """
    for table in metadata.sorted_tables:
        conn.execute(CreateTable(table))
        for index in sorted(table.indexes, key=lambda index: str(index.name)):
            conn.execute(CreateIndex(index))


def require_current(conn: Connection) -> None:
    """Raises SettingsError, with advice, if the database has another version of the schema than this code needs."""
    revision = _revision(conn)
    if revision != newest():
        problem = f"is at version {revision}" if revision else "has no tables of Footplate"
        raise SettingsError(f"the database {problem}, and this service needs version {newest()}: {_remedy(revision)}")


def _remedy(version: str | None) -> str:
    """Returns the advice for a database with this version of the schema. None means a database without our tables."""
    if version is None or version in versions():
        return "run `python -m service migrate`"
    # Versions are numbers of one width, so they compare as text.
    if version < versions()[0]:
        return f"upgrade it with an older Footplate to {versions()[0]} first, or name another database"
    if version < newest():
        return "this version was never released, so no upgrade exists: name another database"
    return "a newer Footplate has migrated it; install that version here, or name another database"


def newest() -> str:
    return versions()[-1]


@lru_cache
def versions() -> list[str]:
    """Returns the schema versions that have a migration, oldest first. The last one is the current version.

    They are read from the names of the migrations, because importing Alembic to list them would take 0.3 s.
    """
    return sorted(path.name.partition("_")[0] for path in (MIGRATIONS / "versions").glob("[0-9]*_*.py"))


def _revision(conn: Connection) -> str | None:
    return conn.execute(select(VERSION.c.version_num)).scalar() if inspect(conn).has_table(VERSION.name) else None
