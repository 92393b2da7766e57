"""Training that does not want to end: nothing of it is left when its job is cancelled, however deep it has hidden."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults import runaway
from tests.support.processes import kill_left_behind
from tests.support.redis_server import RedisServer
from tests.support.system import System
from tests.support.ways import OpenProcesses

DEPTHS = [60, pytest.param(500, marks=pytest.mark.soak)]


@pytest.fixture
def system(tmp_path: Path, redis: RedisServer, database_url: str, protection_off: list[str]) -> Iterator[System]:
    processes = OpenProcesses(tmp_path)
    yield System(processes, redis, database_url, without=protection_off, FOOTPLATE_CODE="on")
    kill_left_behind(tmp_path)
    processes.stop_all()


@pytest.mark.parametrize("depth", DEPTHS)
@pytest.mark.fault(
    14, without=None, because="as root the other means end 60 processes too; a user of its own has the control"
)
def test_nothing_of_a_cancelled_job_survives_with_the_rights_of_its_node(system: System, depth: int) -> None:
    nothing_survives(system, depth, FOOTPLATE_TRAINING_USER="root")


@pytest.mark.parametrize("depth", DEPTHS)
@pytest.mark.fault(14, without="ending all that training has forked", red="survived the cancel")
def test_nothing_of_a_cancelled_job_survives_as_a_user_of_its_own(system: System, depth: int) -> None:
    nothing_survives(system, depth)


def nothing_survives(system: System, depth: int, **environment: str) -> None:
    system.start_service()
    system.start_node(**environment)
    job = runaway.submit(system, depth)
    pids = runaway.levels(system, job)

    runaway.cancelled(system, job)

    runaway.require_gone(pids)
