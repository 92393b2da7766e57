"""Runs two transactions at the same time, as two processes of the service do."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

from sqlalchemy import Connection, text

from service.store.database import Database

T = TypeVar("T")
WAITING = text("SELECT count(*) FROM pg_locks WHERE NOT granted")


def waits_or_is_done(conn: Connection, other: Future[Any]) -> bool:
    """Returns True if the other transaction has ended or waits for this transaction.

    On SQLite the other transaction cannot begin, so there is nothing to wait for.
    """
    return other.done() or conn.dialect.name == "sqlite" or conn.execute(WAITING).scalar_one() > 0


def in_two_transactions(
    migrated_url: str, first: Callable[[Connection], T], second: Callable[[Connection], T]
) -> list[T]:
    """Returns both results. The second transaction begins before the first transaction is committed."""
    other_process = Database(migrated_url, readers=1, writers=1)
    this_process = Database(migrated_url, readers=1, writers=1)

    with ThreadPoolExecutor(1) as thread:

        def write(conn: Connection) -> tuple[T, Future[T]]:
            result = first(conn)
            future = thread.submit(other_process.write_now, second)
            while not waits_or_is_done(conn, future):
                pass
            return result, future

        result, future = this_process.write_now(write)
        results = [result, future.result()]
    for database in (this_process, other_process):
        database.close()
    return results
