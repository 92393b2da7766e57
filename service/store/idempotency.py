"""Statements about Idempotency-Keys. A key is stored in the transaction of the change that its request makes."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection, delete, select
from sqlalchemy.dialects import postgresql, sqlite

from service.store.mapping import columns_of, values_of
from service.store.rows import IdempotencyRow
from service.store.tables import idempotency

_COLUMNS = columns_of(idempotency, IdempotencyRow)
_TAKE: dict[str, Any] = {
    "sqlite": sqlite.insert(idempotency).on_conflict_do_nothing().returning(idempotency.c.key),
    "postgresql": postgresql.insert(idempotency).on_conflict_do_nothing().returning(idempotency.c.key),
}


def take(conn: Connection, row: IdempotencyRow) -> IdempotencyRow:
    """Stores a key and returns its row, or returns the row of an earlier request with this key.

    Waits for a concurrent transaction that stores the same key.
    """
    if conn.execute(_TAKE[conn.dialect.name], values_of(row)).one_or_none() is not None:
        return row
    holder = find(conn, row.project, row.key)
    assert holder is not None, "another transaction has committed the key, or this insert would have succeeded"
    return holder


def find(conn: Connection, project: str, key: str) -> IdempotencyRow | None:
    condition = (idempotency.c.project == project) & (idempotency.c.key == key)
    row = conn.execute(select(*_COLUMNS).where(condition)).one_or_none()
    return IdempotencyRow(*row) if row else None


def prune(conn: Connection, before: int) -> int:
    return conn.execute(delete(idempotency).where(idempotency.c.created_at < before)).rowcount
