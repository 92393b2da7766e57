"""One system for every example: to start one costs more than most of them."""

from __future__ import annotations

import contextlib
import json
import runpy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.processes import REPOSITORY, Processes, nothing_is_left_behind
from tests.support.redis_server import RedisServer
from tests.support.system import JSON, System

EXAMPLES = REPOSITORY / "examples"


class Examples:
    """`example(name)` is a job of examples/, `prepare(folder)` what its README runs first."""

    def __init__(self, system: System) -> None:
        self.system = system
        self._prepared: set[str] = set()

    def prepare(self, folder: str) -> None:
        if folder not in self._prepared:
            runpy.run_path(str(EXAMPLES / folder / "prepare.py"))["prepare"](self.system.folder)
            self._prepared.add(folder)

    def spec(self, name: str) -> JSON:
        self.prepare(name.partition("/")[0])
        found: dict[str, Any] = json.loads((EXAMPLES / name).read_text())
        return found

    def run(self, name: str, **changes: Any) -> JSON:
        """The job as it ended."""
        return self.ended(self.submit(name, **changes))

    def submit(self, name: str, **changes: Any) -> str:
        return self.system.submit({**self.spec(name), **changes})

    def ended(self, job: str) -> JSON:
        return self.system.until_settled(job, within=200)

    def outputs(self, job: str) -> dict[str, bytes]:
        client = self.system.client
        paths = [entry["path"] for entry in self.system.get(f"/jobs/{job}/outputs")["data"]]
        return {Path(path).name: client.get(f"/jobs/{job}/outputs/{path}").content for path in paths}


@pytest.fixture(scope="session")
def examples(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Examples]:
    folder = tmp_path_factory.mktemp("examples")
    with contextlib.ExitStack() as stack:
        stack.callback(nothing_is_left_behind, folder)
        redis = RedisServer().start()
        stack.callback(redis.close)
        processes = Processes(folder)
        stack.callback(processes.stop_all)
        system = System(processes, redis, f"sqlite:///{folder}/footplate.db")
        yield Examples(system.start(slots=2))
