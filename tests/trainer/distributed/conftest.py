"""One start of two processes for all tests of a session, whoever asks first, in whichever of pytest's own processes."""

from __future__ import annotations

import fcntl
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.trainer.distributed import scenarios
from tests.trainer.distributed.asked import ASKED, ASKED_OF_FOUR, ASKED_OF_PARTS, ASKED_OF_ZERO
from tests.trainer.distributed.launch import launched, read

Results = Callable[[str], list[dict[str, Any]]]


@pytest.fixture(scope="session")
def folder_of(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Callable[..., Path]:
    """The folder in which a list of scenarios has been run, once."""
    base = tmp_path_factory.getbasetemp()
    root = base.parent if hasattr(request.config, "workerinput") else base

    def made(name: str, asked: dict[str, dict[str, Any]], *, world: int = 2, **environment: str) -> Path:
        folder = root / f"distributed-{name}"
        folder.mkdir(exist_ok=True)
        with (root / f"distributed-{name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not (folder / "scenarios.json").exists():
                scenarios.trained(folder, name="from-one", text=True, stop_at=3)
                if any(value.get("llama") for value in asked.values()):
                    scenarios.a_llama(folder)
                launched(folder, list(asked.values()), world=world, **environment)
        return folder

    return made


_STARTS: dict[str, dict[str, dict[str, Any]]] = {"two": ASKED, "zero": ASKED_OF_ZERO, "parts": ASKED_OF_PARTS}


@pytest.fixture
def folder(folder_of: Callable[..., Path], request: pytest.FixtureRequest) -> Path:
    start = _start(request)
    # DeepSpeed asks its accelerator, before it asks torch.
    return folder_of(start, _STARTS[start], **({"DS_ACCELERATOR": "cpu"} if start == "zero" else {}))


@pytest.fixture
def came(folder: Path, request: pytest.FixtureRequest) -> Results:
    """Returns the results of the two processes, by a scenario's name."""
    asked = list(_STARTS[_start(request)])
    return lambda name: read(folder, asked.index(name), 2)


@pytest.fixture
def came_of_parts(folder_of: Callable[..., Path]) -> Results:
    folder = folder_of("parts", ASKED_OF_PARTS)
    return lambda name: read(folder, list(ASKED_OF_PARTS).index(name), 2)


@pytest.fixture
def came_of_zero(folder_of: Callable[..., Path]) -> Results:
    folder = folder_of("zero", ASKED_OF_ZERO, DS_ACCELERATOR="cpu")
    return lambda name: read(folder, list(ASKED_OF_ZERO).index(name), 2)


@pytest.fixture
def came_of_four(folder_of: Callable[..., Path]) -> Results:
    folder = folder_of("four", ASKED_OF_FOUR, world=4)
    return lambda name: read(folder, list(ASKED_OF_FOUR).index(name), 4)


def _start(request: pytest.FixtureRequest) -> str:
    """Returns the name of the start that runs the strategy of a test."""
    parameters = getattr(getattr(request.node, "callspec", None), "params", {})
    strategy = str(parameters.get("strategy", ""))
    return "zero" if strategy.startswith("zero") else "parts" if strategy == "tensor parallel" else "two"
