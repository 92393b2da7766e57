"""A node: real processes, a real Redis, and the service's side of it in this process."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from contract import layout
from tests.support.processes import Process, Processes
from tests.support.redis_server import RedisServer
from tests.worker.fake_control import FakeControl


@pytest.fixture
def control(redis: RedisServer) -> Iterator[FakeControl]:
    fake = FakeControl(redis.url)
    yield fake
    fake.end()


@pytest.fixture
def start_node(processes: Processes, redis: RedisServer, tmp_path: Path) -> Callable[..., Process]:
    """`start_node(slots=2)` starts `python -m worker`; keyword arguments are its settings."""
    for name in ("artifacts", "data", "models"):
        (tmp_path / name).mkdir()
    (tmp_path / "artifacts" / layout.PROBE).write_text("probe")

    def start(*argv: str, **settings: Any) -> Process:
        given = {"home": tmp_path, "redis": redis.url, "slots": 1, "beat_seconds": 0.3, "node_name": "one", **settings}
        env = {f"FOOTPLATE_{name.upper()}": value for name, value in given.items()}
        return processes.start(*(argv or ("-m", "worker")), name="worker", env=env)

    return start
