"""Runs each fault test as it stands, and once more as its own negative control, with a protection switched off.

    @pytest.mark.fault(5, without="one grant for each attempt", red="granted 3 times")
    def test_a_message_delivered_a_thousand_times_runs_once(system: System) -> None: ...

A negative control must fail with an AssertionError that matches `red` (the switches are in tests/faults/off). A test
of several protections has a mark for each of them. `without=None` needs a reason: `because="..."`.

`make test` runs each test once, on SQLite, and also on PostgreSQL if the fault is in the database. `make faults` runs
the whole matrix: every test and every control on both databases. CI runs an eighth of the matrix for each commit.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Iterator
from typing import Any

import pytest

from tests.faults.off import SWITCHES
from tests.support.processes import Processes, kill_left_behind, until
from tests.support.redis_server import RedisServer
from tests.support.system import System

PROTECTED, CONTROL = "protected", "control"
OF_THE_DATABASE = {"test_database", "test_two_controls"}
"""Files that test connections and locks, which differ between the databases."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if not (markers := list(metafunc.definition.iter_markers("fault"))):
        return
    cases: list[Any] = [pytest.param(None, id=PROTECTED)]
    for marker in markers:
        name = marker.kwargs["without"]
        if name is None:
            assert marker.kwargs["because"], "a fault test without a control says why"
        else:
            assert name in SWITCHES, f"no switch {name!r}; there are {sorted(SWITCHES)}"
            cases.append(pytest.param(name, id=CONTROL if len(markers) == 1 else f"{CONTROL} without {name}"))
    metafunc.parametrize("protection_off", cases, indirect=True)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        params = call.params if (call := getattr(item, "callspec", None)) else {}
        on_postgres, off = params.get("database_url") == "postgres", params.get("protection_off")
        if off or (on_postgres and item.path.stem not in OF_THE_DATABASE):
            item.add_marker(pytest.mark.matrix)


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Generator[None, object, object]:
    reds = {marker.kwargs["without"]: marker.kwargs.get("red") for marker in pyfuncitem.iter_markers("fault")}
    off = pyfuncitem.callspec.params.get("protection_off") if reds else None
    if off is None:
        return (yield)
    red = str(reds[off])
    try:
        yield
    except AssertionError as error:
        if re.search(red, str(error)) is None:
            raise AssertionError(f"without {off!r} it went red for another reason than {red!r}") from error
        return True
    pytest.fail(f"the control is green: without {off!r} this test should have failed with {red!r}")


@pytest.fixture
def protection_off(request: pytest.FixtureRequest) -> list[str]:
    """Returns the protection that this run turns off, in a list, or an empty list."""
    name: str | None = request.param
    return [name] if name else []


@pytest.fixture
def system(processes: Processes, redis: RedisServer, database_url: str, protection_off: list[str]) -> Iterator[System]:
    """Yields a system with its schema, in which no process runs yet."""
    yield System(processes, redis, database_url, without=protection_off)
    if protection_off:
        # Without a protection, processes may run for ever, and may fork new ones while they are killed.
        until(lambda: not kill_left_behind(processes.folder), within=30, what="the control's last process is killed")
