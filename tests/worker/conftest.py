"""Starts a node with real processes and a real Redis. The service's side runs in the process of the test."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from footplate.contract import layout
from footplate.contract.messages import NodeBeat
from tests.support.plugins import register
from tests.support.processes import REPOSITORY, Process, Processes
from tests.support.redis_server import RedisServer
from tests.worker.fake_control import FakeControl

ENTRY_POINTS = """\
[footplate.models]
test/linear = tests.worker.parts:model
test/broken = tests.worker.parts:broken_model
[footplate.data]
test/data = tests.worker.parts:data
"""


class NodeStarter:
    """Starts `python -m worker` in a folder. Keyword arguments such as `slots=2` are its settings."""

    def __init__(self, processes: Processes, redis: RedisServer) -> None:
        self.folder, self._processes, self._redis = processes.folder, processes, redis
        for name in ("artifacts", "data", "models"):
            (self.folder / name).mkdir()
        (self.folder / "artifacts" / layout.PROBE).write_text("probe")
        register(self.folder / "plugin", ENTRY_POINTS)

    @property
    def artifacts(self) -> Path:
        return self.folder / "artifacts"

    @property
    def journals(self) -> Path:
        return self.folder / "node-1" / "journals"

    def __call__(self, *argv: str, **settings: Any) -> Process:
        values = {"home": self.folder, "redis": self._redis.url, "slots": 1, "beat_seconds": 0.3, "node_name": "one"}
        env = {f"FOOTPLATE_{name.upper()}": value for name, value in {**values, **settings}.items()}
        env["PYTHONPATH"] = f"{self.folder / 'plugin'}:{REPOSITORY}"
        env["SECRET_KEY"] = "hunter2"
        return self._processes.start(*(argv or ("-m", "worker")), name="worker", env=env)


@pytest.fixture
def control(redis: RedisServer, processes: Processes) -> Iterator[FakeControl]:
    fake = FakeControl(redis.url)
    fake.processes = processes
    yield fake
    fake.end()


@pytest.fixture
def start_node(processes: Processes, redis: RedisServer) -> NodeStarter:
    return NodeStarter(processes, redis)


class Lasting:
    """A node that tests of a module share, because a start takes seconds. A test must leave the node intact."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        self.redis = RedisServer().start()
        self.processes = Processes(folder)
        self.control = FakeControl(self.redis.url)
        self.control.processes = self.processes
        self.start = NodeStarter(self.processes, self.redis)
        self.process = self.start(**settings)
        self.node: NodeBeat = self.control.node()

    def submit(self, **options: Any) -> str:
        return self.control.submit(self.node, **options)

    def close(self) -> None:
        self.control.end()
        self.processes.stop_all()
        self.redis.close()


@pytest.fixture(scope="module")
def make_lasting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Lasting]]:
    instances: list[Lasting] = []
    numbers = itertools.count()

    def make(**settings: Any) -> Lasting:
        instances.append(Lasting(tmp_path_factory.mktemp(f"node{next(numbers)}"), **settings))
        return instances[-1]

    yield make
    for instance in instances:
        instance.close()
