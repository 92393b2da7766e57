"""Statements about keys and tickets. Only their hashes are stored, so a backup contains no usable key."""

from __future__ import annotations

from collections.abc import Collection
from hashlib import sha256

from sqlalchemy import Connection, bindparam, delete, insert, select, update

from footplate.contract.errors import NotFound
from footplate.contract.ids import KeyId
from service.store.mapping import columns_of, values_of
from service.store.row_types import KeyRow, TicketRow
from service.store.tables import keys, tickets

_COLUMNS = columns_of(keys, KeyRow)
_ALL = select(*_COLUMNS).order_by(keys.c.id)
_MARK = update(keys).where(keys.c.id == bindparam("id_")).values(last_used_at=bindparam("at"))


def digest(secret: str) -> str:
    """Returns the plain SHA-256 of a key.

    A key is 256 random bits, which cannot be guessed. Salt and slow hashes are for secrets that people choose, and
    every request would pay for a slow hash.
    """
    return sha256(secret.encode()).hexdigest()


def all_keys(conn: Connection) -> list[KeyRow]:
    return [KeyRow(*row) for row in conn.execute(_ALL)]


def insert_key(conn: Connection, row: KeyRow) -> None:
    conn.execute(insert(keys), values_of(row))


def delete_key(conn: Connection, key: KeyId, project: str | None) -> KeyRow:
    """Deletes and returns a key. Raises NotFound, also for a key of another project. `project` None means any."""
    statement = delete(keys).where(keys.c.id == key).returning(*_COLUMNS)
    if project is not None:
        statement = statement.where(keys.c.project == project)
    row = conn.execute(statement).one_or_none()
    if row is None:
        raise NotFound(f"there is no key {key!r} here", hint="GET /keys lists them")
    return KeyRow(*row)


def mark_used(conn: Connection, key_ids: Collection[KeyId], now: int) -> None:
    """Stores the time of the last use of these keys. Callers do so once a minute, not for each request."""
    conn.execute(_MARK, [{"id_": key, "at": now} for key in sorted(key_ids)])


def insert_ticket(conn: Connection, row: TicketRow, now: int) -> None:
    """Stores a ticket, and deletes expired ones."""
    conn.execute(delete(tickets).where(tickets.c.expires_at < now))
    conn.execute(insert(tickets), values_of(row))


def take_ticket(conn: Connection, hash_: str, now: int) -> TicketRow | None:
    """Deletes a ticket and returns it, so that it can be used only once. None: it is unknown or has expired."""
    statement = delete(tickets).where(tickets.c.hash == hash_).returning(*columns_of(tickets, TicketRow))
    row = conn.execute(statement).one_or_none()
    return TicketRow(*row) if row and row.expires_at >= now else None
