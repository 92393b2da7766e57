"""The whole of Footplate for a measurement: Redis, service, one node."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2

from bench.post import Environment, serve
from tests.support.processes import Processes
from tests.support.redis_server import RedisServer

JSON = dict[str, Any]


@contextmanager
def system(folder: Path, *, slots: int = 1) -> Iterator[httpx2.Client]:
    """A client of a service that has a node which takes work."""
    folder.mkdir(parents=True, exist_ok=True)
    processes, redis = Processes(folder), RedisServer().start()
    try:
        env: Environment = {"FOOTPLATE_REDIS": redis.url, "FOOTPLATE_HOME": folder}
        _, port = serve(processes, folder, f"sqlite:///{folder / 'bench.db'}", role="all", **env)
        node = processes.start(
            "-m", "worker", env={**env, "FOOTPLATE_NODE_HOME": folder / "node", "FOOTPLATE_SLOTS": slots}
        )
        with httpx2.Client(base_url=f"http://127.0.0.1:{port}", timeout=30) as client:
            node.until(
                lambda: any(n["state"] == "up" for n in client.get("/nodes").json()["data"]), within=90, what="the node"
            )
            yield client
    finally:
        processes.stop_all()
        redis.close()


def submit(client: httpx2.Client, **training: Any) -> str:
    answer = client.post("/jobs", json={"model": "toy/mlp", "data": "toy/regression", "training": training})
    assert answer.status_code == 201, answer.text
    return str(answer.json()["id"])


def until_state(client: httpx2.Client, job: str, within: float = 60) -> JSON:
    deadline = time.monotonic() + within
    while time.monotonic() < deadline:
        found: JSON = json.loads(client.get(f"/jobs/{job}").content)
        if found["state"] in ("succeeded", "failed", "cancelled"):
            assert found["state"] == "succeeded", found
            return found
        time.sleep(0.01)
    raise AssertionError(f"{job} is not done within {within} s")
