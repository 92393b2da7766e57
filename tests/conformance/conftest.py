from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import text

from service.store.database import Database
from service.store.schema import migrate
from service.store.tables import metadata
from tests.conformance.acting import Stage
from tests.support.postgres import PostgresServer
from tests.support.system import bring_to_schema

STORIES = {
    "test_lifecycle_of_a_job", "test_several_nodes", "test_rotation", "test_live_commands", "test_row_limits",
    "test_rolling_back", "test_starting", "test_regressions",
}  # fmt: skip
"""Files whose tests send PostgreSQL no statement of their own, unless they are marked `own_statement`."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Runs tests of `STORIES` on PostgreSQL only in the matrix, because other tests send the same statements."""
    for item in items:
        is_on_postgres = item.get_closest_marker("postgres") is not None
        if is_on_postgres and item.path.stem in STORIES and item.get_closest_marker("own_statement") is None:
            item.add_marker(pytest.mark.matrix)


@pytest.fixture(scope="session")
def migrated_postgres(postgres_server: PostgresServer) -> Iterator[str]:
    """Yields the URL of a PostgreSQL database that is migrated once and emptied before every test."""
    with postgres_server.database() as url:
        migrate(url)
        yield url


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def migrated_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        sqlite_url = f"sqlite:///{tmp_path / 'footplate.db'}"
        bring_to_schema(sqlite_url)
        return sqlite_url
    url: str = request.getfixturevalue("migrated_postgres")
    database = Database(url, readers=1, writers=1)
    names = ", ".join(metadata.tables)
    database.write_now(lambda conn: conn.execute(text(f"TRUNCATE {names}")))
    database.close()
    return url


@pytest.fixture
def db(migrated_url: str) -> Iterator[Database]:
    database = Database(migrated_url, readers=2, writers=3)
    yield database
    database.close()


@pytest.fixture
def stage(db: Database) -> Stage:
    return Stage(db)
