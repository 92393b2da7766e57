"""Starts Redis, a service and nodes for a measurement."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event, Thread
from typing import Any

import httpx2

from bench.post import Environment, serve
from tests.support.processes import Process, Processes
from tests.support.redis_server import RedisServer

JSON = dict[str, Any]


@contextmanager
def beside(work: Callable[[Event], None]) -> Iterator[None]:
    """Runs `work` in a thread during the block. The event is set at the end of the block, and ends `work`."""
    is_over = Event()
    thread = Thread(target=work, args=(is_over,))
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


@dataclass
class System:
    """A running service with its client, and its nodes by name."""

    client: httpx2.Client
    processes: Processes
    environment: Environment
    nodes: dict[str, Process] = field(default_factory=dict)

    def start_node(self, name: str) -> None:
        """Starts a node, and waits until it takes work."""
        home = Path(str(self.environment["FOOTPLATE_HOME"])) / name
        env = {**self.environment, "FOOTPLATE_NODE_HOME": home, "FOOTPLATE_NODE_NAME": name}
        node = self.nodes[name] = self.processes.start("-m", "worker", env=env)

        def is_up() -> bool:
            return any(n["name"] == name and n["state"] == "up" for n in self.client.get("/nodes").json()["data"])

        node.until(is_up, within=90, what=name)


@contextmanager
def system(folder: Path, *, slots: int = 1, nodes: int = 1, **settings: str | float) -> Iterator[System]:
    """Yields a service whose nodes take work."""
    folder.mkdir(parents=True, exist_ok=True)
    processes, redis = Processes(folder), RedisServer().start()
    try:
        env: Environment = {"FOOTPLATE_REDIS": redis.url, "FOOTPLATE_HOME": folder, **settings}
        _, port = serve(processes, folder, f"sqlite:///{folder / 'bench.db'}", role="all", **env)
        with httpx2.Client(base_url=f"http://127.0.0.1:{port}", timeout=30) as client:
            running_system = System(client, processes, {**env, "FOOTPLATE_SLOTS": slots})
            for number in range(1, nodes + 1):
                running_system.start_node(f"node-{number}")
            yield running_system
    finally:
        processes.stop_all()
        redis.close()


def submit(client: httpx2.Client, spec: JSON | None = None, **training: Any) -> str:
    body = {"model": "toy/mlp", "data": "toy/regression", "training": training, **(spec or {})}
    answer = client.post("/jobs", json=body)
    assert answer.status_code == 201, answer.text
    return str(answer.json()["id"])


def until_state(client: httpx2.Client, job: str, within: float = 60) -> JSON:
    deadline = time.monotonic() + within
    while time.monotonic() < deadline:
        answer: JSON = json.loads(client.get(f"/jobs/{job}").content)
        if answer["state"] in ("succeeded", "failed", "cancelled"):
            assert answer["state"] == "succeeded", answer
            return answer
        time.sleep(0.01)
    raise AssertionError(f"{job} is not done within {within} s")
