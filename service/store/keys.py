"""Statements about keys and tickets. Of either only the hash is kept: what is in a backup opens nothing."""

from __future__ import annotations

from collections.abc import Collection
from hashlib import sha256

from sqlalchemy import Connection, bindparam, delete, insert, select, update

from footplate.contract.errors import NotFound
from footplate.contract.ids import KeyId
from service.store.mapping import columns_of, values_of
from service.store.rows import KeyRow, TicketRow
from service.store.tables import keys, tickets

_COLUMNS = columns_of(keys, KeyRow)
_EVERYONE = select(*_COLUMNS).order_by(keys.c.id)
_MARK = update(keys).where(keys.c.id == bindparam("id_")).values(last_used_at=bindparam("at"))


def digest(secret: str) -> str:
    """Plain SHA-256. What it hashes are 256 random bits, which nobody guesses: salt, stretching and a pepper are for
    secrets that people choose, and a slow hash would be paid by every request."""
    return sha256(secret.encode()).hexdigest()


def everyone(conn: Connection) -> list[KeyRow]:
    return [KeyRow(*row) for row in conn.execute(_EVERYONE)]


def insert_key(conn: Connection, row: KeyRow) -> None:
    conn.execute(insert(keys), values_of(row))


def delete_key(conn: Connection, key: KeyId, project: str | None) -> KeyRow:
    """The key that is gone now. Raises NotFound; another project's key is not there either. None: of any project."""
    gone = delete(keys).where(keys.c.id == key).returning(*_COLUMNS)
    if project is not None:
        gone = gone.where(keys.c.project == project)
    row = conn.execute(gone).one_or_none()
    if row is None:
        raise NotFound(f"there is no key {key!r} here", hint="GET /keys lists them")
    return KeyRow(*row)


def mark_used(conn: Connection, used: Collection[KeyId], now: int) -> None:
    """Some minute in which they were used: a write per request would cost more than it tells."""
    conn.execute(_MARK, [{"id_": key, "at": now} for key in sorted(used)])


def insert_ticket(conn: Connection, row: TicketRow, now: int) -> None:
    """And forgets those that nobody has used in time."""
    conn.execute(delete(tickets).where(tickets.c.expires_at < now))
    conn.execute(insert(tickets), values_of(row))


def take_ticket(conn: Connection, hash_: str, now: int) -> TicketRow | None:
    """Once: of two who bring the same ticket one gets it. None: used, expired or made up."""
    taken = delete(tickets).where(tickets.c.hash == hash_).returning(*columns_of(tickets, TicketRow))
    row = conn.execute(taken).one_or_none()
    return TicketRow(*row) if row and row.expires_at >= now else None
