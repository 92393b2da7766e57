"""The script that Alembic runs to migrate a SQLite or PostgreSQL database in one transaction."""

from __future__ import annotations

import sqlite3
from typing import Any

from alembic import context
from sqlalchemy import Engine, create_engine, event

from service.store.tables import metadata


def run() -> None:
    engine = create_engine(context.config.attributes["url"])
    if engine.dialect.name == "sqlite":
        _begin_before_tables_change(engine)
    with engine.begin() as connection:
        # Batch mode: SQLite alters a table by copying it.
        context.configure(
            connection=connection,
            target_metadata=metadata,
            render_as_batch=True,
            compare_type=True,
            # Alembic assumes the opposite for SQLite, and its log would say so.
            transactional_ddl=True,
        )
        context.run_migrations()
    engine.dispose()


def _begin_before_tables_change(engine: Engine) -> None:
    """Makes transactions include statements that change tables, so that an interrupted migration changes nothing.

    By default, Python's driver begins a transaction only before rows change, and each new column is committed alone.
    """

    @event.listens_for(engine, "connect")
    def _prepare(connection: sqlite3.Connection, _record: Any) -> None:
        connection.isolation_level = None

    @event.listens_for(engine, "begin")
    def _begin(connection: Any) -> None:
        connection.exec_driver_sql("BEGIN IMMEDIATE")


run()
