"""Starts the processes of the distributed tests once per session. All workers of pytest share the results."""

from __future__ import annotations

import fcntl
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.trainer.distributed import scenarios
from tests.trainer.distributed.launch import launched, read
from tests.trainer.distributed.scenario_lists import LAUNCH_OF, LAUNCHES

FolderOf = Callable[[str], Path]
Results = Callable[[str], list[dict[str, Any]]]


@pytest.fixture(scope="session")
def folder_of(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> FolderOf:
    """Returns a function that returns the folder of a scenario, and runs all scenarios of its launch before."""
    base = tmp_path_factory.getbasetemp()
    root = base.parent if hasattr(request.config, "workerinput") else base

    def scenario_folder(scenario: str) -> Path:
        launch = LAUNCH_OF[scenario]
        runs = list(LAUNCHES[launch].values())
        folder = root / f"distributed-{launch}"
        folder.mkdir(exist_ok=True)
        with (root / f"distributed-{launch}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not (folder / "scenarios.json").exists():
                scenarios.trained(folder, name="from-one", text=True, stop_at=3)
                if any(values.get("llama") for values in runs):
                    scenarios.a_llama(folder)
                # DeepSpeed selects its accelerator by this variable, whatever devices torch has.
                environment = {"DS_ACCELERATOR": "cpu"} if "zero" in launch else {}
                launched(folder, runs, world=_world_of(launch), **environment)
        return folder

    return scenario_folder


@pytest.fixture
def results(folder_of: FolderOf) -> Results:
    """Returns the results of all processes, by a scenario's name."""

    def read_results(scenario: str) -> list[dict[str, Any]]:
        launch = LAUNCH_OF[scenario]
        return read(folder_of(scenario), list(LAUNCHES[launch]).index(scenario), _world_of(launch))

    return read_results


def _world_of(launch: str) -> int:
    return 4 if launch == "four" else 2
