"""The script that Alembic runs to migrate a SQLite or PostgreSQL database, always over an open connection."""

from __future__ import annotations

from alembic import context
from sqlalchemy import create_engine

from service.store.tables import metadata


def run() -> None:
    engine = create_engine(context.config.attributes["url"])
    with engine.connect() as connection:
        # Batch mode: SQLite alters a table by copying it.
        context.configure(connection=connection, target_metadata=metadata, render_as_batch=True, compare_type=True)
        with context.begin_transaction():
            context.run_migrations()
    engine.dispose()


run()
