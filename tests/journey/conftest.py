from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.postgres import PostgresServer
from tests.support.processes import Processes
from tests.support.redis_server import RedisServer
from tests.support.system import System, standing_system


@pytest.fixture
def system(processes: Processes, redis: RedisServer, mostly_sqlite_url: str) -> System:
    """Returns a system with its schema, in which no process runs yet."""
    return System(processes, redis, mostly_sqlite_url)


@contextlib.contextmanager
def running_on(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, **more: Any
) -> Iterator[System]:
    """Yields a running system on the kind of database that is the parameter of the fixture."""
    folder = tmp_path_factory.mktemp(request.param)
    with contextlib.ExitStack() as stack:
        url = None
        if request.param == "postgres":
            server: PostgresServer = request.getfixturevalue("postgres_server")
            url = stack.enter_context(server.database())
        yield stack.enter_context(standing_system(folder, url, **more))


@pytest.fixture(
    scope="module", params=["sqlite", pytest.param("postgres", marks=[pytest.mark.postgres, pytest.mark.matrix])]
)
def standing(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[System]:
    """Yields a service and a node with two slots, for tests that leave both running.

    Only `make faults` uses PostgreSQL.
    """
    with running_on(request, tmp_path_factory) as system:
        yield system
