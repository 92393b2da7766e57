"""One start of two processes for all tests of a session, whoever asks first, in whichever of pytest's own processes."""

from __future__ import annotations

import fcntl
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.trainer.distributed import scenarios
from tests.trainer.distributed.asked import ASKED, ASKED_OF_ZERO
from tests.trainer.distributed.launch import launched, read

Results = Callable[[str], list[dict[str, Any]]]


@pytest.fixture(scope="session")
def folder_of(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Callable[..., Path]:
    """The folder in which a list of scenarios has been run, once."""
    base = tmp_path_factory.getbasetemp()
    root = base.parent if hasattr(request.config, "workerinput") else base

    def made(name: str, asked: dict[str, dict[str, Any]], **environment: str) -> Path:
        folder = root / f"distributed-{name}"
        folder.mkdir(exist_ok=True)
        with (root / f"distributed-{name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not (folder / "scenarios.json").exists():
                scenarios.trained(folder, name="from-one", text=True, stop_at=3)
                launched(folder, list(asked.values()), **environment)
        return folder

    return made


@pytest.fixture
def folder(folder_of: Callable[..., Path], request: pytest.FixtureRequest) -> Path:
    if is_zero(request):
        # DeepSpeed asks its accelerator, before it asks torch.
        return folder_of("zero", ASKED_OF_ZERO, DS_ACCELERATOR="cpu")
    return folder_of("two", ASKED)


@pytest.fixture
def came(folder: Path, request: pytest.FixtureRequest) -> Results:
    """What each of the two processes found, by a scenario's name."""
    asked = list(ASKED_OF_ZERO if is_zero(request) else ASKED)
    return lambda name: read(folder, asked.index(name), 2)


def is_zero(request: pytest.FixtureRequest) -> bool:
    parameters = getattr(getattr(request.node, "callspec", None), "params", {})
    return str(parameters.get("strategy", "")).startswith("zero")
