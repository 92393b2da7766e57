"""Training that runs as another user than its node dies with the node, although the kernel forgets its death signal."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.support.processes import Processes, children, is_alive, until
from tests.support.system import LONG_TOY, System
from tests.support.ways import OpenProcesses
from tests.worker.test_killed_processes import command

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give training a user of its own")

ENDLESS = {**LONG_TOY, "training": {**LONG_TOY["training"], "max_steps": 100_000}}


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[Processes]:
    new_processes = OpenProcesses(tmp_path)
    yield new_processes
    new_processes.stop_all()


@pytest.fixture
def database_url(sqlite_url: str) -> str:
    """Selects SQLite only, because the test does not depend on the database."""
    return sqlite_url


@pytest.mark.fault(1, without="training under its own user dies with the warm parent", red="nobody but the kernel")
def test_training_under_its_own_user_ends_when_its_warm_parent_dies(system: System) -> None:
    system.start()
    node = system.nodes[1].pid
    job = system.submit(ENDLESS)
    system.until_step(job, 5)
    training = system.training_pids(job)
    assert os.stat(f"/proc/{training[0]}/cwd", follow_symlinks=True).st_uid != 0, "its folder is its user's"
    warm = parent_of(training[0])
    assert "footplate.runtime.warm_parent" in command(warm)

    # The supervisor, and the node, which adopts training as an orphan, are frozen and cannot kill training.
    frozen = [pid for pid in (node, *children(node)) if pid not in (*training, warm)]
    for pid in frozen:
        os.kill(pid, signal.SIGSTOP)
    os.kill(warm, signal.SIGKILL)
    try:
        message = "training is gone, though nobody but the kernel was left to end it"
        until(lambda: not any(map(is_alive, training)), within=1, what=message)
    finally:
        for pid in frozen:
            # The node runs again first, and reaps the processes that died meanwhile.
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)


def parent_of(pid: int) -> int:
    with open(f"/proc/{pid}/stat") as file:
        return int(file.read().rpartition(")")[2].split()[1])
