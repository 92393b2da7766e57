from __future__ import annotations

import pytest

from tests.support.processes import Processes
from tests.support.redis_server import RedisServer
from tests.support.system import System


@pytest.fixture
def system(processes: Processes, redis: RedisServer, database_url: str) -> System:
    """Nothing of ours runs yet; the schema stands."""
    return System(processes, redis, database_url)
