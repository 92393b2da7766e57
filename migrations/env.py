"""The script that Alembic runs to migrate a SQLite or PostgreSQL database in one transaction."""

from __future__ import annotations

from alembic import context
from sqlalchemy import create_engine, make_url

from service.store.engines import Engines
from service.store.tables import metadata


def run() -> None:
    url = context.config.attributes["url"]
    # Python's driver would commit each new column alone, so that an interrupted migration could change something.
    # On PostgreSQL a migration may take longer than the service's statements.
    is_sqlite = make_url(url).get_backend_name() == "sqlite"
    engine = Engines(url, readers=1, writers=1).writer if is_sqlite else create_engine(url)
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


run()
