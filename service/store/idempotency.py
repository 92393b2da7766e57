"""Statements about Idempotency-Keys. A key is stored in the transaction of the change that its request makes."""

from __future__ import annotations

from sqlalchemy import Connection, delete, select

from service.store.mapping import columns_of, insert_if_new
from service.store.row_types import IdempotencyRow
from service.store.tables import idempotency

_COLUMNS = columns_of(idempotency, IdempotencyRow)


def take(conn: Connection, row: IdempotencyRow) -> IdempotencyRow:
    """Stores a key and returns its row, or returns the row of an earlier request with this key.

    Waits for a concurrent transaction that stores the same key.
    """
    if insert_if_new(conn, idempotency, row):
        return row
    holder = find(conn, row.project, row.key)
    assert holder is not None, "another transaction has committed the key, or this insert would have succeeded"
    return holder


def find(conn: Connection, project: str, key: str) -> IdempotencyRow | None:
    condition = (idempotency.c.project == project) & (idempotency.c.key == key)
    row = conn.execute(select(*_COLUMNS).where(condition)).one_or_none()
    return IdempotencyRow(*row) if row else None


def prune(conn: Connection, before: int) -> None:
    conn.execute(delete(idempotency).where(idempotency.c.created_at < before))
