"""Tests the connection to the database: concurrent writes, outages and reported errors."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy import Connection, insert, text
from sqlalchemy.exc import DBAPIError

from footplate.contract.errors import Conflict, SettingsError, Unavailable
from footplate.contract.messages import Command
from service.store import commands, jobs
from service.store import engines as engines_module
from service.store.control_lock import control_lock
from service.store.database import Database, Inserts
from service.store.queue import shape_of
from service.store.schema import migrate, require_current
from service.store.tables import idempotency, metadata
from tests.conformance.acting import Stage
from tests.support.postgres import PostgresServer
from tests.support.system import bring_to_schema


def keep(key: str) -> Callable[[Connection], str]:
    def write(conn: Connection) -> str:
        row = {"key": key}
        conn.execute(text("INSERT INTO idempotency VALUES ('p', :key, 'x', 'j', NULL, 0)"), row)
        return key

    return write


def stored_keys(db: Database) -> list[str]:
    return db.read_now(lambda conn: list(conn.execute(text("SELECT key FROM idempotency ORDER BY key")).scalars()))


async def test_a_failed_write_does_not_affect_others_of_its_batch(db: Database) -> None:
    def refuse(conn: Connection) -> str:
        keep("never")(conn)
        raise Conflict("no")

    def break_a_rule(conn: Connection) -> str:
        return keep("a")(conn)

    def miss_the_artifact_store(conn: Connection) -> str:
        keep("never")(conn)
        raise Unavailable("the artifact store is unreachable")

    await db.write(keep("a"))
    writes = [keep("b"), refuse, keep("c"), break_a_rule, keep("d"), miss_the_artifact_store, keep("e")]
    outcomes = await asyncio.gather(*(db.write(fn) for fn in writes), return_exceptions=True)

    assert [outcome if isinstance(outcome, str) else type(outcome).__name__ for outcome in outcomes] == [
        "b", "Conflict", "c", "IntegrityError", "d", "Unavailable", "e",
    ]  # fmt: skip
    assert stored_keys(db) == ["a", "b", "c", "d", "e"]


async def test_inserts_of_one_batch_are_sent_together_and_a_wrong_one_fails_alone(db: Database) -> None:
    statement = insert(idempotency)

    def row(key: str) -> Inserts[str]:
        values = {"project": "p", "key": key, "body_sha256": "", "job_id": "", "response": None, "created_at": 0}
        return Inserts([(statement, values)], lambda: key)

    keys = ["a", "b", "c"]
    assert await asyncio.gather(*(db.write(row(key)) for key in keys)) == keys
    outcomes = await asyncio.gather(*(db.write(row(key)) for key in ("d", "b", "e")), return_exceptions=True)

    assert [outcome if isinstance(outcome, str) else type(outcome).__name__ for outcome in outcomes] == [
        "d", "IntegrityError", "e",
    ]  # fmt: skip
    assert stored_keys(db) == ["a", "b", "c", "d", "e"]


async def test_no_write_of_many_concurrent_writers_is_lost(db: Database) -> None:
    names = [f"{number:03}" for number in range(300)]

    assert await asyncio.gather(*(db.write(keep(key)) for key in names)) == names
    assert stored_keys(db) == names


async def test_a_cancelled_write_does_not_affect_other_writes(db: Database) -> None:
    cancelled = asyncio.create_task(db.write(keep("gone")))
    await asyncio.sleep(0)
    cancelled.cancel()

    assert await db.write(keep("here")) == "here"
    assert "here" in stored_keys(db)


def test_a_reader_cannot_write(db: Database) -> None:
    with pytest.raises(Exception, match=r"read-?only"):
        db.read_now(keep("x"))
    assert stored_keys(db) == []


def test_a_read_transaction_sees_one_state_of_the_database(db: Database) -> None:
    def twice(conn: Connection) -> tuple[int, int]:
        first = conn.execute(text("SELECT count(*) FROM idempotency")).scalar_one()
        db.write_now(keep("between"))
        return first, conn.execute(text("SELECT count(*) FROM idempotency")).scalar_one()

    assert db.read_now(twice) == (0, 0)


def test_a_closed_database_refuses_writes(db: Database) -> None:
    db.close()

    with pytest.raises(Unavailable):
        db.write_now(keep("late"))


def test_queued_writes_are_finished_before_close(migrated_url: str) -> None:
    database = Database(migrated_url)
    threads = [threading.Thread(target=database.write_now, args=(keep(f"{n}"),)) for n in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    database.close()
    again = Database(migrated_url)
    assert len(stored_keys(again)) == 20
    again.close()


def test_a_locked_sqlite_is_unavailable_until_it_is_unlocked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "locked.db"
    url = f"sqlite:///{path}"
    bring_to_schema(url)
    monkeypatch.setattr(engines_module, "BUSY_SECONDS", 0.2)
    database = Database(url)
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")

    with pytest.raises(Unavailable, match="locked"):
        database.write_now(keep("x"))
    other.execute("ROLLBACK")

    assert database.write_now(keep("y")) == "y"
    assert stored_keys(database) == ["y"]
    database.close()
    other.close()


def test_a_corrupt_sqlite_is_unavailable(tmp_path: Path) -> None:
    path = tmp_path / "broken.db"
    path.write_bytes(b"SQLite format 3\0" + b"nonsense" * 1000)
    database = Database(f"sqlite:///{path}")

    with pytest.raises(Unavailable):
        database.write_now(keep("x"))
    with pytest.raises(Unavailable):
        stored_keys(database)
    database.close()


@pytest.mark.postgres
def test_a_restarting_postgres_is_unavailable_until_it_is_back(
    postgres_server: PostgresServer, postgres_url: str
) -> None:
    migrate(postgres_url)
    database = Database(postgres_url)
    database.write_now(keep("before"))
    postgres_server.stop()
    try:
        with pytest.raises(Unavailable):
            database.write_now(keep("during"))
        with pytest.raises(Unavailable):
            stored_keys(database)
    finally:
        postgres_server.start()

    assert database.write_now(keep("after")) == "after"
    assert stored_keys(database) == ["after", "before"]
    database.close()


@pytest.mark.postgres
def test_a_restart_of_postgres_between_two_writes_fails_no_write(
    postgres_server: PostgresServer, postgres_url: str
) -> None:
    migrate(postgres_url)
    database = Database(postgres_url, writers=1)
    database.write_now(keep("before"))
    postgres_server.stop()
    postgres_server.start()

    assert database.write_now(keep("after")) == "after"
    database.close()


def test_only_one_control_holds_the_lock(migrated_url: str) -> None:
    first, second = control_lock(migrated_url), control_lock(migrated_url)

    assert first.try_take()
    assert not second.try_take()
    assert first.is_held()
    first.release()
    assert second.try_take()
    assert not first.is_held()
    second.release()


def test_concurrent_posts_with_one_idempotency_key_make_one_job(db: Database) -> None:
    stage = Stage(db)
    job_ids: list[str] = []
    threads = [threading.Thread(target=lambda: job_ids.append(stage.submitted("key").job.id)) for _ in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(job_ids) == 20
    assert len(set(job_ids)) == 1


VERSION_29 = (
    "ALTER TABLE curves DROP COLUMN until",
    "UPDATE alembic_version SET version_num = '0029'",
)
"""The statements that turn a new database into one of version 29: the reverse of migration 30."""
VERSION_28 = (
    *VERSION_29,
    "ALTER TABLE jobs RENAME COLUMN failed_without_checkpoint TO stuck",
    "ALTER TABLE jobs RENAME COLUMN failed_attempts TO spent",
    "UPDATE alembic_version SET version_num = '0028'",
)
"""The statements that turn a new database into one of version 28."""
VERSION_18 = (
    *VERSION_28,
    "ALTER TABLE sources RENAME COLUMN rendezvous TO meets_at",
    "ALTER TABLE sources RENAME COLUMN sent_at TO rung_at",
    "CREATE TABLE deeds AS SELECT * FROM live_commands", "DROP TABLE live_commands",
    "ALTER TABLE webhooks DROP COLUMN format",
    "ALTER TABLE files DROP COLUMN report", "ALTER TABLE files DROP COLUMN bad_rows",
    "ALTER TABLE files DROP COLUMN rows",
    "DROP TABLE upload_parts", "DROP TABLE uploads", "ALTER TABLE jobs DROP COLUMN fine_tune",
    "DROP INDEX ix_jobs_queued", "DROP INDEX ix_attempts_ended", "DROP INDEX ix_jobs_later", "DROP INDEX ix_jobs_shape",
    "DROP INDEX ix_jobs_ready", "DROP TABLE waits", "ALTER TABLE jobs DROP COLUMN shape",
    "ALTER TABLE nodes DROP COLUMN roots", "ALTER TABLE jobs DROP COLUMN warnings",
    "CREATE INDEX ix_jobs_waiting ON jobs (priority DESC, id) WHERE state = 'queued'",
    "CREATE INDEX ix_jobs_fresh ON jobs (id) WHERE state = 'queued' AND reason <> 'capacity'",
    "UPDATE alembic_version SET version_num = '0018'",
)  # fmt: skip
"""The statements that turn a new database into one of the oldest version that can be upgraded.

They are the reverse of all migrations, the newest first.
"""


def change(url: str, *statements: str) -> None:
    database = Database(url)
    for statement in statements:
        database.write_now(lambda conn, statement=statement: conn.execute(text(statement)))  # type: ignore[misc]
    database.close()


@pytest.mark.parametrize("older", [VERSION_18, VERSION_28, VERSION_29], ids=["18", "28", "29"])
def test_an_older_database_is_migrated_and_keeps_jobs_and_commands(database_url: str, older: tuple[str, ...]) -> None:
    from alembic.autogenerate import compare_metadata
    from alembic.migration import MigrationContext

    migrate(database_url)
    database = Database(database_url)
    job = Stage(database).submitted(None).job
    command = Command(no=2, save=True)
    database.write_now(lambda conn: commands.insert_command(conn, job.id, command))
    database.close()
    change(database_url, "UPDATE jobs SET failed_attempts = 2, failed_without_checkpoint = 1", *older)

    migrate(database_url)
    migrate(database_url)

    database = Database(database_url)
    database.read_now(require_current)
    shapes = database.read_now(lambda conn: conn.execute(text("SELECT id, shape FROM jobs")).all())
    kept_job = database.read_now(lambda conn: jobs.peek(conn, job.id))
    kept_commands = database.read_now(lambda conn: commands.of_job(conn, job.id))
    context_options = {"compare_type": True}
    drift = database.read_now(
        lambda conn: compare_metadata(MigrationContext.configure(conn, opts=context_options), metadata)
    )
    database.close()
    assert [tuple(row) for row in shapes] == [(job.id, shape_of(job.needs))]
    assert kept_job == replace(job, failed_attempts=2, failed_without_checkpoint=1)
    assert kept_commands == [command]
    assert drift == []


def test_a_migration_that_fails_changes_nothing_and_can_be_repeated(database_url: str) -> None:
    migrate(database_url)
    change(database_url, *VERSION_18, "CREATE TABLE uploads (in_the_way INTEGER)")

    with pytest.raises((Unavailable, DBAPIError), match="uploads"):
        migrate(database_url)
    change(database_url, "DROP TABLE uploads")
    migrate(database_url)

    database = Database(database_url)
    database.read_now(require_current)
    database.close()


@pytest.mark.parametrize(
    ("version", "remedy"),
    [
        ("0011", "older Footplate"),
        ("0023", "never released"),
        ("9999", "newer Footplate"),
    ],
)
def test_a_database_that_cannot_be_migrated_is_refused(tmp_path: Path, version: str, remedy: str) -> None:
    url = f"sqlite:///{tmp_path / 'footplate.db'}"
    migrate(url)
    change(url, f"UPDATE alembic_version SET version_num = '{version}'")

    with pytest.raises(SettingsError, match=remedy):
        migrate(url)

    database = Database(url)
    with pytest.raises(SettingsError, match=remedy):
        database.read_now(require_current)
    database.close()
