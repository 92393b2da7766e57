"""Two engines on one database, one that writes and one that only reads; and what a driver's errors mean."""

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

BUSY_SECONDS = 5.0
"""How long SQLite waits for another process's write, and PostgreSQL for a lock."""


class Engines:
    def __init__(self, url: str, *, readers: int, writers: int) -> None:
        parsed = make_url(url)
        if parsed.get_backend_name() == "sqlite":
            self.writer, self.reader = _sqlite(url, begin="BEGIN IMMEDIATE"), _sqlite(url, readers, begin="BEGIN")
        elif parsed.drivername == "postgresql+psycopg":
            self.writer = _postgres(url, writers)
            self.reader = _postgres(url, readers).execution_options(
                isolation_level="REPEATABLE READ", postgresql_readonly=True
            )
        else:
            raise SettingsError(
                f"FOOTPLATE_DATABASE names {parsed.drivername!r}. Known: sqlite:///path, postgresql+psycopg://user:password@host/name."
            )

    def dispose(self) -> None:
        self.writer.dispose()
        self.reader.dispose()


def _sqlite(url: str, size: int = 1, *, begin: str) -> Engine:
    path = make_url(url).database
    if not path or path == ":memory:":
        raise SettingsError("FOOTPLATE_DATABASE must name a file: a SQLite in memory dies with its connection")
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    _close_to_others(Path(path))
    engine = create_engine(url, pool_size=size, max_overflow=2, pool_timeout=BUSY_SECONDS)

    @event.listens_for(engine, "connect")
    def _prepare(connection: sqlite3.Connection, _record: Any) -> None:
        # Ours, not the driver's: it would begin late, and never IMMEDIATE.
        connection.isolation_level = None
        connection.execute(f"PRAGMA busy_timeout = {int(BUSY_SECONDS * 1000)}")
        connection.execute("PRAGMA journal_mode = WAL")
        # A job that was acknowledged survives a power cut. Group commit pays for the fsync.
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
    """Keys' hashes and webhooks' secrets lie there, and another user of this machine runs users' code: training's. What
    SQLite puts beside it gets the same mode. Never opened where it is there: its close would end locks of others."""
    try:
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    except FileExistsError:
        for each in (path, path.with_name(f"{path.name}-wal"), path.with_name(f"{path.name}-shm")):
            with suppress(OSError):
                each.chmod(each.stat().st_mode & 0o770)
    except OSError:
        # Whoever connects says what is wrong with it.
        return


def _postgres(url: str, size: int) -> Engine:
    return create_engine(
        url,
        pool_size=size,
        max_overflow=0,
        pool_timeout=BUSY_SECONDS,
        pool_pre_ping=True,
        connect_args={
            "connect_timeout": 5,
            "options": f"-c lock_timeout={int(BUSY_SECONDS * 1000)} -c statement_timeout=30000 "
            "-c idle_in_transaction_session_timeout=60000 -c timezone=UTC "
            # Each statement here touches little: starting helpers, or compiling, takes longer than a whole page.
            "-c max_parallel_workers_per_gather=0 -c jit=off",
            "keepalives_idle": 10,
            "keepalives_interval": 5,
            "keepalives_count": 3,
        },
    )


# As SQLAlchemy wraps them, and as they come from the few statements that go past it.
_DATABASE = (DBAPIError, sqlite3.Error, psycopg.Error)
_OUR_MISTAKE = tuple(
    getattr(module, name)
    for module in (sqlalchemy.exc, sqlite3, psycopg)
    for name in ("IntegrityError", "DataError", "ProgrammingError", "NotSupportedError")
)

# The start has seen the schema: that it is not there now is somebody's migration, and no mistake of a statement.
_NO_SCHEMA = (psycopg.errors.UndefinedTable, psycopg.errors.UndefinedColumn)


def is_away(error: BaseException) -> bool:
    """Whether SQL, rather than what we asked of it, is the trouble: gone, locked, full, corrupt, exhausted, changed."""
    if isinstance(error, PoolTimeout | Unavailable):
        return True
    if isinstance(error, DBAPIError) and error.connection_invalidated:
        return True
    if isinstance(getattr(error, "orig", error), _NO_SCHEMA):
        return True
    return isinstance(error, _DATABASE) and not isinstance(error, _OUR_MISTAKE)


def is_rivalry(error: BaseException) -> bool:
    """A deadlock or a serialization failure: the other one won, and the same again will do."""
    cause = error.__cause__ if isinstance(error, Unavailable) else error
    original = getattr(cause, "orig", cause)
    return isinstance(original, psycopg.errors.DeadlockDetected | psycopg.errors.SerializationFailure)
