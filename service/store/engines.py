"""SQLAlchemy's engines for reading and for writing one database, and the classification of the driver's errors."""

from __future__ import annotations

import os
import sqlite3
from contextlib import suppress
from pathlib import Path
from typing import Any

import psycopg
import sqlalchemy.exc
from sqlalchemy import Engine, create_engine, event, make_url
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from footplate.contract.errors import SettingsError, Unavailable

CONNECTION = {"connect_timeout": 5, "keepalives_idle": 10, "keepalives_interval": 5, "keepalives_count": 3}
"""The options of every connection to PostgreSQL, which notice a server that is gone."""
BUSY_SECONDS = 5.0
"""The wait of SQLite for another process's write, and of PostgreSQL for a lock."""


class Engines:
    def __init__(self, url: str, *, readers: int, writers: int) -> None:
        if make_url(url).get_backend_name() == "sqlite":
            self.writer, self.reader = _sqlite(url, begin="BEGIN IMMEDIATE"), _sqlite(url, readers, begin="BEGIN")
        else:
            self.writer = _postgres(url, writers)
            self.reader = _postgres(url, readers).execution_options(
                isolation_level="REPEATABLE READ", postgresql_readonly=True
            )

    def dispose(self) -> None:
        self.writer.dispose()
        self.reader.dispose()


def _sqlite(url: str, size: int = 1, *, begin: str) -> Engine:
    path = make_url(url).database
    if not path or path == ":memory:":
        raise SettingsError(
            "FOOTPLATE_DATABASE must name a file, because a SQLite database in memory is lost with its connection"
        )
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    _close_to_others(Path(path))
    engine = create_engine(url, pool_size=size, max_overflow=2, pool_timeout=BUSY_SECONDS)

    @event.listens_for(engine, "connect")
    def _prepare(connection: sqlite3.Connection, _record: Any) -> None:
        # `_begin` begins transactions, because the driver would begin them late, and never as IMMEDIATE.
        connection.isolation_level = None
        connection.execute(f"PRAGMA busy_timeout = {int(BUSY_SECONDS * 1000)}")
        connection.execute("PRAGMA journal_mode = WAL")
        # With FULL, an acknowledged job survives a power cut. One fsync serves all writes of a group commit.
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("PRAGMA cache_size = -32000")
        connection.execute("PRAGMA temp_store = MEMORY")
        if begin == "BEGIN":
            connection.execute("PRAGMA query_only = ON")

    @event.listens_for(engine, "begin")
    def _begin(connection: Any) -> None:
        connection.exec_driver_sql(begin)

    return engine


def _close_to_others(path: Path) -> None:
    """Lets only this user read the database file, because it holds hashes of keys and secrets of webhooks.

    Users' code may run on this machine, as another user. SQLite gives the files beside the database the same mode. An
    existing file is not opened, because closing it would release this process's locks on it.
    """
    try:
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    except FileExistsError:
        for file in (path, path.with_name(f"{path.name}-wal"), path.with_name(f"{path.name}-shm")):
            with suppress(OSError):
                file.chmod(file.stat().st_mode & 0o770)
    except OSError:
        # The first connection to the database fails with the same error, which is reported then.
        return


def _postgres(url: str, size: int) -> Engine:
    return create_engine(
        url,
        pool_size=size,
        max_overflow=0,
        pool_timeout=BUSY_SECONDS,
        pool_pre_ping=True,
        connect_args={
            **CONNECTION,
            "client_encoding": "utf8",
            "options": f"-c lock_timeout={int(BUSY_SECONDS * 1000)} -c statement_timeout=30000 "
            "-c idle_in_transaction_session_timeout=60000 -c timezone=UTC "
            # Each statement reads few rows, so starting parallel workers or compiling would take longer than reading.
            "-c max_parallel_workers_per_gather=0 -c jit=off",
        },
    )


# Errors as SQLAlchemy wraps them, and as they come from the few statements that bypass it.
_DATABASE = (DBAPIError, sqlite3.Error, psycopg.Error)
_OUR_MISTAKE = tuple(
    getattr(module, name)
    for module in (sqlalchemy.exc, sqlite3, psycopg)
    for name in ("IntegrityError", "DataError", "ProgrammingError", "NotSupportedError")
)

# The schema was checked at the start. If it is missing now, a migration has changed it.
_NO_SCHEMA = (psycopg.errors.UndefinedTable, psycopg.errors.UndefinedColumn)


def is_unavailable(error: BaseException) -> bool:
    """Returns True if the database itself fails: it is unreachable, locked, full, corrupt, or was migrated."""
    if isinstance(error, PoolTimeout):
        return True
    if isinstance(error, DBAPIError) and error.connection_invalidated:
        return True
    if isinstance(getattr(error, "orig", error), _NO_SCHEMA):
        return True
    return isinstance(error, _DATABASE) and not isinstance(error, _OUR_MISTAKE)


def is_conflict(error: BaseException) -> bool:
    """Returns True for a deadlock or a serialization failure, after which a repetition succeeds."""
    cause = error.__cause__ if isinstance(error, Unavailable) else error
    original = getattr(cause, "orig", cause)
    return isinstance(original, psycopg.errors.DeadlockDetected | psycopg.errors.SerializationFailure)
