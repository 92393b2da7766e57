"""INSERTs past SQLAlchemy, for the two rows that every POST writes: it costs three times what the database does."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import Any

from sqlalchemy import Connection

_MARKS = {"sqlite": "?", "postgresql": "%s"}


class DirectInsert:
    """One statement, written once per dialect; values come in the order of the columns."""

    def __init__(self, table: str, columns: Sequence[str]) -> None:
        self._statements = {
            dialect: f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({', '.join([mark] * len(columns))})"
            for dialect, mark in _MARKS.items()
        }

    def __call__(self, conn: Connection, values: Sequence[Any]) -> None:
        driver: Any = conn.connection.driver_connection
        # Drivers disagree about enums.
        driver.execute(self._statements[conn.dialect.name], [v.value if isinstance(v, Enum) else v for v in values])
