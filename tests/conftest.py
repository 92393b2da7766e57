"""Fixtures for all tests, and a final line about tests that were not run."""

from __future__ import annotations

import gc
import hashlib
import os
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

# Each process uses one thread, because many processes share few cores. This must be set before torch is imported.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# Our tokenizers set this variable, too. A program can be forked only if the variable has the same value.
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
# Training processes set this variable, so the same holds for it.
os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")

import pytest
from hypothesis import HealthCheck, settings

from tests.support import browser, postgres, template
from tests.support.processes import Processes, nothing_is_left_behind, pids
from tests.support.redis_server import RedisServer
from tests.support.s3_server import S3Server, s3_server

# Every run uses the same examples and no deadline, because a test must not fail once in a hundred runs.
# `--hypothesis-profile many` tries more examples.
settings.register_profile("fixed", derandomize=True, max_examples=50, deadline=None, database=None,
                          suppress_health_check=[HealthCheck.too_slow])  # fmt: skip
settings.register_profile("many", max_examples=5_000, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("fixed")

IN_CI = os.environ.get("CI", "").lower() in ("1", "true")
HAS_GPU = Path("/dev/nvidiactl").exists()


@pytest.fixture
def redis() -> Iterator[RedisServer]:
    """Yields a running Redis for this test alone, which may kill, freeze, flush and restart it."""
    server = RedisServer().start()
    yield server
    server.close()


@pytest.fixture(scope="session")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """Yields the bucket of the session, which this process may use, too. A test that stops the server restarts it."""
    with s3_server(tmp_path_factory.mktemp("s3")) as server, server.variables_set():
        yield server


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[postgres.PostgresServer]:
    """Yields the PostgreSQL server of the session. A test that stops the server starts it again."""
    if (programs := postgres.programs()) is None:
        pytest.skip(f"needs PostgreSQL: {postgres.INSTALL}")
    server = postgres.PostgresServer(programs).start()
    yield server
    server.close()


@pytest.fixture
def sqlite_url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'footplate.db'}"


@pytest.fixture
def postgres_url(postgres_server: postgres.PostgresServer) -> Iterator[str]:
    with postgres_server.database() as url:
        yield url


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def database_url(request: pytest.FixtureRequest) -> str:
    """Returns the URL of an empty database of each kind. `-k sqlite` or `-k postgres` selects one kind."""
    return str(request.getfixturevalue(f"{request.param}_url"))


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=[pytest.mark.postgres, pytest.mark.matrix])])
def mostly_sqlite_url(request: pytest.FixtureRequest) -> str:
    """Returns the URL of an empty database, for tests of whole systems. Only `make faults` runs them on PostgreSQL."""
    return str(request.getfixturevalue(f"{request.param}_url"))


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[Processes]:
    """Yields an object that starts programs, and stops them when the test is over."""
    started = Processes(tmp_path)
    yield started
    started.stop_all()


@pytest.fixture(scope="session")
def chromium_path() -> str:
    if (result := browser.chromium()) is None:
        pytest.skip(f"needs Chromium: {browser.INSTALL}")
    return result


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Excludes all that the test files import from garbage collection.

    Hugging Face's Trainer collects garbage in each run, and would check every object of torch and transformers.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_collection_finish() -> None:
    template.remember_environment()


@pytest.fixture(autouse=True)
def variables_that_imports_read_are_as_before() -> Iterator[None]:
    """Restores environment variables that libraries set in the test process.

    Otherwise programs that are started later could not be forked.
    """
    yield
    template.restore_environment()


@pytest.fixture(autouse=True)
def no_process_is_left_behind(request: pytest.FixtureRequest) -> Iterator[None]:
    if "tmp_path" not in request.fixturenames:
        yield
        return
    folder: Path = request.getfixturevalue("tmp_path")
    others = set(pids())
    yield
    nothing_is_left_behind(folder, others=others)


_not_run: dict[str, int] = {}
_skipped: dict[str, int] = {}


EIGHTHS = 8


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("footplate")
    group.addoption("--matrix", action="store_true", help="run the whole fault matrix, and nothing else")
    group.addoption("--eighth", type=int, choices=range(1, EIGHTHS + 1), help="of the fault matrix, this part only")


def eighth_of(name: str) -> int:
    """Returns the eighth of the matrix that has this test, which is the same on every machine and in every run."""
    return int(hashlib.sha256(name.encode()).hexdigest(), 16) % EIGHTHS + 1


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Selects the tests. `--matrix` selects only the matrix, and `--eighth 3` adds or selects its third eighth."""
    whole, eighth = config.getoption("matrix"), config.getoption("eighth")
    chosen, others = [], []
    for item in items:
        is_beyond, is_fault = item.get_closest_marker("matrix"), item.get_closest_marker("fault")
        is_in_eighth = eighth_of(item.nodeid) == eighth
        if whole:
            is_chosen = (is_beyond or is_fault) and (eighth is None or is_in_eighth)
        else:
            is_chosen = not is_beyond or is_in_eighth
        (chosen if is_chosen else others).append(item)
    if others:
        config.hook.pytest_deselected(items=others)
        items[:] = chosen


def pytest_deselected(items: list[pytest.Item]) -> None:
    for name in ("gpu", "soak", "matrix"):
        _not_run[name] = _not_run.get(name, 0) + sum(item.get_closest_marker(name) is not None for item in items)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Copies the counts from a test process, because the main process of pytest-xdist collects no tests."""
    _not_run.update(getattr(node, "workeroutput", {}).get("not_run", {}))


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.skipped and not hasattr(report, "wasxfail"):
        _, _, reason = report.longrepr if isinstance(report.longrepr, tuple) else ("", 0, str(report.longrepr))
        _skipped[reason] = _skipped.get(reason, 0) + 1


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    chosen = config.getoption("markexpr")
    if (count := _not_run.get("gpu", 0)) and "not gpu" in chosen:
        why = "`make gpu` runs them" if HAS_GPU else "no GPU here; `make gpu` runs them where there is one"
        terminalreporter.write_line(f"{count} gpu tests not run: {why}")
    if (count := _not_run.get("soak", 0)) and "not soak" in chosen:
        terminalreporter.write_line(f"{count} soak tests not run: `make soak` runs them")
    if (count := _not_run.get("matrix", 0)) and not config.getoption("matrix"):
        also = f"; eighth {config.getoption('eighth')} of {EIGHTHS} ran" if config.getoption("eighth") else ""
        terminalreporter.write_line(f"{count} tests of the fault matrix not run: `make faults` runs them{also}")
    for reason, count in _skipped.items():
        terminalreporter.write_line(f"{count} skipped: {reason.removeprefix('Skipped: ')}")
    if IN_CI and _skipped:
        terminalreporter.write_line("CI installs everything, so a skipped test is a failed one there.", red=True)


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["not_run"] = _not_run
    if IN_CI and _skipped and exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
