"""Tests a database that restarts, is full, locked, corrupt, or of another version. No event is lost.

Meanwhile a client may get 503, with the cause and the time of a retry, but never 500.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import psycopg
import pytest
from sqlalchemy import create_engine, text

from service.store.schema import migrate
from tests.faults.visitor import Visitor
from tests.support import preload
from tests.support.postgres import PostgresServer
from tests.support.processes import Processes
from tests.support.redis_server import RedisServer
from tests.support.small_disk import NEEDED, SmallDisk, small_disk
from tests.support.system import LONG_TOY, System, assert_whole

LONGER_TOY = {**LONG_TOY, "training": {**LONG_TOY["training"], "max_steps": 240, "save_steps": 40}}


@pytest.fixture
def disk() -> Iterator[SmallDisk]:
    # The disk is outside the test's folder, because PostgreSQL runs as another user, who may not enter that folder.
    with TemporaryDirectory(prefix="fp-disk-") as folder:
        os.chmod(folder, 0o755)
        with small_disk(Path(folder) / "disk", megabytes=24) as result:
            if result is None:
                pytest.skip(f"needs {NEEDED}")
            yield result


@pytest.mark.fault(9, without="a driver's error means that SQL is unavailable", red="answered 500")
def test_a_locked_and_then_full_sqlite_loses_nothing(
    processes: Processes, redis: RedisServer, disk: SmallDisk, protection_off: list[str]
) -> None:
    path = disk.folder / "footplate.db"
    system = System(processes, redis, f"sqlite:///{path}", without=protection_off).start()
    job = system.submit(LONGER_TOY)
    system.until_step(job, 5)
    with Visitor(system) as visitor:
        visitor.until_served()
        with locked(path):
            for _ in range(2):
                # Each request waits for five seconds.
                visitor.until_refused("locked")
        visitor.until_served()
        disk.fill()
        visitor.until_refused("full")
        disk.free()
        visitor.until_served()
    must_be_undisturbed(system, job)
    visitor.must_have_all()


@pytest.mark.postgres
@pytest.mark.fault(9, without="a driver's error means that SQL is unavailable", red="answered 500")
def test_a_postgres_that_restarts_or_is_exhausted_locked_or_full_loses_nothing(
    processes: Processes,
    redis: RedisServer,
    disk: SmallDisk,
    postgres_server: PostgresServer,
    protection_off: list[str],
) -> None:
    with database_on(disk, postgres_server) as (name, url):
        system = System(processes, redis, url, without=protection_off).start()
        job = system.submit(LONGER_TOY)
        system.until_step(job, 5)
        with Visitor(system) as visitor:
            for end in (postgres_server.stop, postgres_server.kill):
                visitor.until_served()
                with outage(postgres_server, end):
                    visitor.until_refused("connection")
            visitor.until_served()
            with without_connections(postgres_server, name):
                visitor.until_refused("too many connections")
            visitor.until_served()
            with psycopg.connect(plain(url)) as other:
                other.execute("LOCK TABLE jobs IN ACCESS EXCLUSIVE MODE")
                visitor.until_refused("lock timeout")
            visitor.until_served()
            disk.fill()
            visitor.until_refused("No space left on device")
            disk.free()
            visitor.until_served()
        must_be_undisturbed(system, job)
        visitor.must_have_all()
        processes.stop_all()


@pytest.mark.fault(9, without="the schema is checked before it is used", red="it starts on a schema that is")
def test_a_database_schema_of_another_version_stops_the_start_with_the_fix(
    processes: Processes, database_url: str, protection_off: list[str]
) -> None:
    environment = service_environment(processes, database_url, protection_off)
    must_refuse(processes, environment, "empty", "no tables", "python -m service migrate")
    migrate(database_url)
    change(database_url, "UPDATE alembic_version SET version_num = '0018'")
    must_refuse(processes, environment, "older", "0018", "python -m service migrate")
    change(database_url, "UPDATE alembic_version SET version_num = '9999'")
    must_refuse(processes, environment, "newer", "9999", "a newer Footplate")

    migrating = processes.start("-m", "service", "migrate", env=environment)
    assert migrating.wait(60) == 2
    assert "9999" in migrating.output
    assert "a newer Footplate" in migrating.output


def must_refuse(processes: Processes, environment: dict[str, Any], schema: str, *names: str) -> None:
    service = processes.start("-m", "service", "all", env=environment)
    processes.until(
        lambda: not service.is_running or is_up(processes), within=60, what="the service refuses the schema or starts"
    )
    assert not service.is_running, f"it starts on a schema that is {schema}"
    assert service.popen.returncode == 2
    assert all(name in service.output for name in names), service.output
    assert "Traceback" not in service.output


@pytest.mark.fault(9, without="a driver's error means that SQL is unavailable", red="answered 500")
def test_a_service_whose_schema_disappears_reports_it_and_waits(system: System, database_url: str) -> None:
    system.start_service()
    with Visitor(system) as visitor:
        visitor.until_served()
        change(database_url, "ALTER TABLE jobs RENAME TO gone")
        visitor.until_refused("jobs")
        assert system.client.get("/livez").status_code == 200
        change(database_url, "ALTER TABLE gone RENAME TO jobs")
        visitor.until_served()
    visitor.must_have_all()


# Without the protection, a connection may go on with the pages in its cache, so that no request is ever refused.
@pytest.mark.fault(
    9,
    without="a driver's error means that SQL is unavailable",
    red="answered 500|Traceback|not within 60 s: a request is refused",
)
def test_a_broken_sqlite_file_is_reported_and_never_served(
    processes: Processes, redis: RedisServer, tmp_path: Path, protection_off: list[str]
) -> None:
    path = tmp_path / "footplate.db"
    system = System(processes, redis, f"sqlite:///{path}", without=protection_off)
    system.start_service()
    with Visitor(system) as visitor:
        visitor.until_served()
        break_pages(path)
        visitor.until_refused("malformed")
    assert system.client.get("/readyz").status_code == 503

    system.services["all"].kill()
    again = system.run("service", "all")
    assert again.wait(60) == 1, again.output
    assert "database disk image is malformed" in again.output
    assert "Traceback" not in again.output


def service_environment(processes: Processes, url: str, protection_off: list[str]) -> dict[str, Any]:
    return {
        "FOOTPLATE_HOME": processes.folder,
        "FOOTPLATE_DATABASE": url,
        "FOOTPLATE_PORT": 0,
        "FOOTPLATE_URL_FILE": processes.folder / "url",
        "PYTHONPATH": preload.write(processes.folder / "preload", without=protection_off),
    }


def is_up(processes: Processes) -> bool:
    return (processes.folder / "url").exists()


def change(url: str, *statements: str) -> None:
    engine = create_engine(url)
    with engine.begin() as connection:
        for statement in statements:
            connection.execute(text(statement))
    engine.dispose()


def break_pages(path: Path) -> None:
    """Overwrites everything after the first page of the database file and of its log, as a failing disk would."""
    for file in (path, path.with_name(f"{path.name}-wal")):
        with file.open("r+b") as broken:
            size = broken.seek(0, os.SEEK_END)
            broken.seek(4096)
            broken.write(b"\xa5" * max(0, size - 4096))


def must_be_undisturbed(system: System, job: str) -> None:
    outcome = system.until_settled(job)
    assert (outcome["state"], outcome["attempt"]) == ("succeeded", 1), outcome
    assert_whole(system.events(job))
    assert sorted(system.losses(job)) == list(range(1, 241))


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Locks the database from another process, as a backup or a shell does, for longer than any request waits."""
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        yield
        other.execute("ROLLBACK")


@contextmanager
def database_on(disk: SmallDisk, server: PostgresServer) -> Iterator[tuple[str, str]]:
    """Yields a database on the small disk whose commits survive a crash, and whose user may be limited."""
    name = "small"
    location = server.own_folder(disk.folder / "tablespace")
    server.run(f"CREATE TABLESPACE {name} LOCATION '{location}'")
    server.run(f"CREATE ROLE {name} LOGIN")
    server.run(f"CREATE DATABASE {name} OWNER {name} TABLESPACE {name}")
    server.run(f"ALTER DATABASE {name} SET synchronous_commit TO on")
    try:
        yield name, server.url(name).replace("//footplate@", f"//{name}@")
    finally:
        for what in ("DATABASE", "TABLESPACE", "ROLE"):
            server.run(f"DROP {what} {name}" + (" WITH (FORCE)" if what == "DATABASE" else ""))


@contextmanager
def outage(server: PostgresServer, end: Callable[[], None]) -> Iterator[None]:
    end()
    try:
        yield
    finally:
        server.start()


@contextmanager
def without_connections(server: PostgresServer, user: str) -> Iterator[None]:
    """Closes all connections of the service, and refuses new ones until the block ends."""
    server.run(f"ALTER ROLE {user} CONNECTION LIMIT 0")
    server.run(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = '{user}'")
    yield
    server.run(f"ALTER ROLE {user} CONNECTION LIMIT -1")


def plain(url: str) -> str:
    return url.replace("+psycopg", "")
