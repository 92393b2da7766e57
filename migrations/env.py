"""Alembic's entry: online only, on SQLite and PostgreSQL, with the tables that the service uses."""

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
