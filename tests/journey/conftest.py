from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest

from tests.support.postgres import PostgresServer
from tests.support.processes import Processes
from tests.support.redis_server import RedisServer
from tests.support.system import System, standing_system


@pytest.fixture
def system(processes: Processes, redis: RedisServer, mostly_sqlite_url: str) -> System:
    """Nothing of ours runs yet; the schema stands."""
    return System(processes, redis, mostly_sqlite_url)


@pytest.fixture(scope="module", params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def standing(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[System]:
    """Service and one node with two slots, for every test that leaves them standing."""
    folder = tmp_path_factory.mktemp(request.param)
    with contextlib.ExitStack() as stack:
        url = None
        if request.param == "postgres":
            server: PostgresServer = request.getfixturevalue("postgres_server")
            url = stack.enter_context(server.database())
        yield stack.enter_context(standing_system(folder, url))
