"""One start of two processes for all tests of a session, whoever asks first, in whichever of pytest's own processes."""

from __future__ import annotations

import fcntl
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.trainer.distributed.launch import launched


@pytest.fixture(scope="session")
def once(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Callable[..., Path]:
    """A folder in which something was made once."""
    base = tmp_path_factory.getbasetemp()
    root = base.parent if hasattr(request.config, "workerinput") else base

    def make(name: str, how: Callable[[Path], Any]) -> Path:
        folder = root / f"distributed-{name}"
        folder.mkdir(exist_ok=True)
        with (root / f"distributed-{name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not (folder / "done").exists():
                how(folder)
                (folder / "done").touch()
        return folder

    return make


@pytest.fixture(scope="session")
def launch_once(once: Callable[..., Path]) -> Callable[..., list[list[Any]]]:
    """The results of a list of scenarios."""

    def results(name: str, scenarios: list[dict[str, Any]], before: Callable[[Path], Any] | None = None) -> Any:
        def how(folder: Path) -> None:
            if before is not None:
                before(folder)
            launched(folder, scenarios)

        folder = once(name, how)
        from tests.trainer.distributed.launch import read

        return read(folder, len(scenarios), 2)

    return results
