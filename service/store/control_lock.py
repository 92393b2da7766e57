"""The lock that lets only one of several control processes work, so that no work is done twice.

It is an flock on a file beside the SQLite database, or an advisory lock in PostgreSQL. A frozen process keeps the lock,
and then nobody works. If the connection of the lock's holder is cut, another process takes over. The first process
checks the lock before it writes again, and then stops. Fences and row locks keep the data right even if two processes
work for a moment.
"""

from __future__ import annotations

import fcntl
import os
from contextlib import suppress

from sqlalchemy import Connection, create_engine, make_url, text
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.pool import NullPool

from service.store.engines import CONNECTION

ADVISORY_KEY = 0x466F6F74706C6174
"""'Footplat' in hexadecimal: a number that no other program of this database uses."""


def control_lock(url: str) -> FileLock | AdvisoryLock:
    database_url = make_url(url)
    if database_url.get_backend_name() == "sqlite":
        return FileLock(f"{database_url.database}.control")
    return AdvisoryLock(url)


class FileLock:
    def __init__(self, path: str) -> None:
        self._path = path
        self._fd: int | None = None

    def try_take(self) -> bool:
        """Tries to take the lock without waiting. Returns True if this process has the lock now."""
        fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
            return False
        self._fd = fd
        return True

    def is_held(self) -> bool:
        return self._fd is not None

    def release(self) -> None:
        fd, self._fd = self._fd, None
        if fd is not None:
            os.close(fd)


class AdvisoryLock:
    def __init__(self, url: str) -> None:
        self._engine = create_engine(url, poolclass=NullPool, isolation_level="AUTOCOMMIT", connect_args=CONNECTION)
        self._connection: Connection | None = None

    def try_take(self) -> bool:
        with suppress(SQLAlchemyError):
            connection = self._engine.connect()
            if connection.execute(text("SELECT pg_try_advisory_lock(:key)"), {"key": ADVISORY_KEY}).scalar():
                self._connection = connection
            else:
                connection.close()
        return self._connection is not None

    def is_held(self) -> bool:
        """Returns True if this process still holds the lock, which ends with its connection."""
        if self._connection is None:
            return False
        try:
            self._connection.execute(text("SELECT 1"))
        except SQLAlchemyError:
            self.release()
            return False
        return True

    def release(self) -> None:
        connection, self._connection = self._connection, None
        if connection is None:
            return
        try:
            connection.close()
        except SQLAlchemyError:
            # The server is gone, and the lock with it.
            connection.invalidate()
