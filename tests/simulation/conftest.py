from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.conformance.conftest import db, migrated_postgres, migrated_url, stage
from tests.simulation.ground import Ground

__all__ = ["db", "ground", "migrated_postgres", "migrated_url", "stage"]


@pytest.fixture(scope="session")
def ground() -> Iterator[Ground]:
    """Yields a SQLite database in the memory of this process."""
    ground = Ground()
    yield ground
    ground.close()
