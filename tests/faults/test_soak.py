"""Tests mixed load under random faults. No record is inconsistent at the end.

`make test` runs a sample on each database; `make soak` runs FOOTPLATE_SOAK_SECONDS (an hour) and adds a row to
docs/developers/soak.md. Each run prints its seed.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import date
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from sqlalchemy import create_engine, text

from tests.faults.books import Books, Result, audit, report_of
from tests.faults.chaos import Chaos
from tests.faults.soak import BRIEF, LONG, Load
from tests.support.postgres import PostgresServer
from tests.support.processes import REPOSITORY, Processes, free_port
from tests.support.redis_server import RedisServer
from tests.support.system import JSON, System

SAMPLE_SECONDS, SAMPLE_READERS = 15.0, 20
LONG_SECONDS, LONG_READERS = float(os.environ.get("FOOTPLATE_SOAK_SECONDS", "3600")), 100


def soak(system: System, kinds: dict[str, JSON], seconds: float, readers: int, between: tuple[float, float],
         postgres: PostgresServer | None, scratch: Path) -> tuple[Books, str]:  # fmt: skip
    seed = random.SystemRandom().randrange(1 << 32)
    print(f"seed {seed}")
    system.start_service()
    for number in (1, 2):
        system.start_node(number, slots=2, wait=False)
    quiet = {kind: system.submit(spec) for kind, spec in kinds.items()}
    expected = {kind: _quiet_result(system, job) for kind, job in quiet.items()}
    chaos = Chaos(system, seed, between, postgres)
    load = Load(system, kinds, seed, readers, lambda: chaos.service_is_down)
    with ThreadPoolExecutor(1) as people:
        busy = people.submit(asyncio.run, load.run(settle_within=60 + 10 * seconds**0.5))
        try:
            chaos.inject(seconds, busy.done)
        finally:
            load.last_call.set()
        busy.result()
    books = audit(system, load, expected, scratch)
    kind = system.environment["FOOTPLATE_DATABASE"].partition(":")[0].partition("+")[0]
    report = report_of(books, load, chaos, f"{date.today()}, {kind}, {seconds:g} s, {readers} readers, seed {seed}")
    print(report)
    return books, report


def _quiet_result(system: System, job: str) -> Result:
    outcome = system.until_settled(job, within=400)
    assert outcome["state"] == "succeeded", outcome
    return Result.of(system, job, system.events(job))


@pytest.fixture
def scratch() -> Iterator[Path]:
    """Yields the folder for temporary files of all processes.

    Its name is short, because data workers make sockets in it.
    """
    with TemporaryDirectory(prefix="fp-", dir="/tmp") as folder:
        yield Path(folder)


@pytest.fixture
def crashing(database_url: str, request: pytest.FixtureRequest) -> PostgresServer | None:
    """Returns the PostgreSQL server, or None on SQLite. Its commits must survive a crash, unlike other commits."""
    if database_url.startswith("sqlite"):
        return None
    engine = create_engine(database_url, isolation_level="AUTOCOMMIT")
    with engine.connect() as conn:
        conn.execute(text(f'ALTER DATABASE "{engine.url.database}" SET synchronous_commit = on'))
    engine.dispose()
    server: PostgresServer = request.getfixturevalue("postgres_server")
    return server


@pytest.fixture
def system(processes: Processes, redis: RedisServer, database_url: str, scratch: Path) -> System:
    """Returns a system with short leases, so that many attempts are lost in a few seconds."""
    return System(
        processes, redis, database_url,
        FOOTPLATE_PORT=str(free_port()), FOOTPLATE_LEASE_SECONDS="4", TMPDIR=str(scratch),
    )  # fmt: skip


@pytest.mark.matrix
def test_a_sample_of_mixed_load_under_random_faults_leaves_consistent_records(
    system: System, crashing: PostgresServer | None, scratch: Path
) -> None:
    books, report = soak(system, BRIEF, SAMPLE_SECONDS, SAMPLE_READERS, (0.5, 2.5), crashing, scratch)

    assert not any(books.values()), report


@pytest.mark.soak
@pytest.mark.timeout(LONG_SECONDS + 1800)
def test_an_hour_of_mixed_load_under_random_faults_leaves_consistent_records(
    system: System, crashing: PostgresServer | None, scratch: Path
) -> None:
    books, report = soak(system, LONG, LONG_SECONDS, LONG_READERS, (1.0, 7.0), crashing, scratch)

    page = REPOSITORY / "docs/developers/soak.md"
    page.write_text(f"{page.read_text()}\n## {report}\n")
    assert not any(books.values()), report
