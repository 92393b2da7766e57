"""INSERTs past SQLAlchemy for each POST and event, because SQLAlchemy costs three times as much as the database."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import Enum
from typing import Any

from sqlalchemy import Connection

_MARKS = {"sqlite": "?", "postgresql": "%s"}


class DirectInsert:
    """One INSERT, compiled once per dialect. Values come in the order of the columns."""

    def __init__(self, table: str, columns: Sequence[str]) -> None:
        self._table, self._columns = table, ", ".join(columns)
        self._statements = {
            dialect: f"INSERT INTO {table} ({self._columns}) VALUES ({', '.join([mark] * len(columns))})"
            for dialect, mark in _MARKS.items()
        }

    def __call__(self, conn: Connection, values: Sequence[Any]) -> None:
        driver: Any = conn.connection.driver_connection
        # Drivers treat enums differently.
        driver.execute(self._statements[conn.dialect.name], [v.value if isinstance(v, Enum) else v for v in values])

    def many(self, conn: Connection, rows: Iterable[Sequence[Any]]) -> None:
        """Inserts many rows of plain values in the way that is fastest for each driver."""
        driver: Any = conn.connection.driver_connection
        if conn.dialect.name == "sqlite":
            driver.executemany(self._statements["sqlite"], rows)
            return
        with driver.cursor() as cursor, cursor.copy(f"COPY {self._table} ({self._columns}) FROM STDIN") as copy:
            for row in rows:
                copy.write_row(row)


class DirectUpsert:
    """Inserts many rows at once. If a row with the same key exists, its other columns are replaced."""

    def __init__(self, table: str, key: Sequence[str], columns: Sequence[str]) -> None:
        names = [*key, *columns]
        changes = ", ".join(f"{name} = excluded.{name}" for name in columns)
        self._statements = {
            dialect: f"INSERT INTO {table} ({', '.join(names)}) VALUES ({', '.join([mark] * len(names))}) "
            f"ON CONFLICT ({', '.join(key)}) DO UPDATE SET {changes}"
            for dialect, mark in _MARKS.items()
        }

    def many(self, conn: Connection, rows: Sequence[Sequence[Any]]) -> None:
        driver: Any = conn.connection.driver_connection
        statement = self._statements[conn.dialect.name]
        if conn.dialect.name == "sqlite":
            driver.executemany(statement, rows)
            return
        with driver.cursor() as cursor:
            cursor.executemany(statement, rows)
