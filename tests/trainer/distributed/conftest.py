"""Starts the processes of the distributed tests once per session. All workers of pytest share the results."""

from __future__ import annotations

import fcntl
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.trainer.distributed import scenarios
from tests.trainer.distributed.launch import launched, read
from tests.trainer.distributed.scenario_lists import (
    ADAPTERS_OF_ZERO,
    SCENARIOS_OF_FOUR,
    SCENARIOS_OF_PARTS,
    SCENARIOS_OF_TWO,
    SCENARIOS_OF_ZERO,
)

Results = Callable[[str], list[dict[str, Any]]]


@pytest.fixture(scope="session")
def folder_of(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Callable[..., Path]:
    """Returns a function that runs a list of scenarios once per session and returns the folder of their results."""
    base = tmp_path_factory.getbasetemp()
    root = base.parent if hasattr(request.config, "workerinput") else base

    def made(name: str, runs: dict[str, dict[str, Any]], *, world: int = 2, **environment: str) -> Path:
        folder = root / f"distributed-{name}"
        folder.mkdir(exist_ok=True)
        with (root / f"distributed-{name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not (folder / "scenarios.json").exists():
                scenarios.trained(folder, name="from-one", text=True, stop_at=3)
                if any(value.get("llama") for value in runs.values()):
                    scenarios.a_llama(folder)
                launched(folder, list(runs.values()), world=world, **environment)
        return folder

    return made


_STARTS: dict[str, dict[str, dict[str, Any]]] = {
    "two": SCENARIOS_OF_TWO,
    "zero": SCENARIOS_OF_ZERO,
    "parts": SCENARIOS_OF_PARTS,
}


@pytest.fixture
def folder(folder_of: Callable[..., Path], request: pytest.FixtureRequest) -> Path:
    start = _start(request)
    # DeepSpeed selects its accelerator by this variable, whatever devices torch has.
    return folder_of(start, _STARTS[start], **({"DS_ACCELERATOR": "cpu"} if start == "zero" else {}))


@pytest.fixture
def results(folder: Path, request: pytest.FixtureRequest) -> Results:
    """Returns the results of the two processes, by a scenario's name."""
    runs = list(_STARTS[_start(request)])
    return lambda name: read(folder, runs.index(name), 2)


@pytest.fixture
def results_of_parts(folder_of: Callable[..., Path]) -> Results:
    folder = folder_of("parts", SCENARIOS_OF_PARTS)
    return lambda name: read(folder, list(SCENARIOS_OF_PARTS).index(name), 2)


@pytest.fixture
def results_of_zero(folder_of: Callable[..., Path]) -> Results:
    folder = folder_of("zero", SCENARIOS_OF_ZERO, DS_ACCELERATOR="cpu")
    return lambda name: read(folder, list(SCENARIOS_OF_ZERO).index(name), 2)


@pytest.fixture
def adapters_of_zero(folder_of: Callable[..., Path]) -> Results:
    folder = folder_of("adapters-of-zero", ADAPTERS_OF_ZERO, DS_ACCELERATOR="cpu")
    return lambda name: read(folder, list(ADAPTERS_OF_ZERO).index(name), 2)


@pytest.fixture
def results_of_four(folder_of: Callable[..., Path]) -> Results:
    folder = folder_of("four", SCENARIOS_OF_FOUR, world=4)
    return lambda name: read(folder, list(SCENARIOS_OF_FOUR).index(name), 4)


def _start(request: pytest.FixtureRequest) -> str:
    """Returns the name of the launch that runs the strategy of this test."""
    parameters = getattr(getattr(request.node, "callspec", None), "params", {})
    strategy = str(parameters.get("strategy", ""))
    return "zero" if strategy.startswith("zero") else "parts" if strategy == "tensor parallel" else "two"
