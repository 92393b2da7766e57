from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest

from tests.support.postgres import PostgresServer
from tests.support.processes import Processes, nothing_is_left_behind
from tests.support.redis_server import RedisServer
from tests.support.system import System


@pytest.fixture
def system(processes: Processes, redis: RedisServer, database_url: str) -> System:
    """Nothing of ours runs yet; the schema stands."""
    return System(processes, redis, database_url)


@pytest.fixture(scope="module", params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def standing(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[System]:
    """Service and one node with two slots, for every test that leaves them standing."""
    folder = tmp_path_factory.mktemp(request.param)
    with contextlib.ExitStack() as stack:
        url = f"sqlite:///{folder}/footplate.db"
        if request.param == "postgres":
            server: PostgresServer = request.getfixturevalue("postgres_server")
            url = stack.enter_context(server.database())
        stack.callback(nothing_is_left_behind, folder)
        redis = RedisServer().start()
        stack.callback(redis.close)
        processes = Processes(folder)
        stack.callback(processes.stop_all)
        yield System(processes, redis, url).start(slots=2)
