"""Makes tables of frozen dataclasses, converts between these and rows, and inserts rows that may exist already."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import fields
from functools import cache
from operator import attrgetter
from types import UnionType
from typing import Any, NewType, Union, get_args, get_origin, get_type_hints

from sqlalchemy import Boolean, Column, Connection, Float, Integer, MetaData, String, Table
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.types import TypeEngine

SQL_TYPES: dict[type, type[TypeEngine[Any]]] = {str: String, int: Integer, float: Float, bool: Boolean}


def table_of(
    metadata: MetaData, name: str, row_class: type, key: Collection[str], *other_columns: Column[Any], **options: Any
) -> Table:
    """Returns a table with a column for each field of the dataclass.

    `other_columns` are columns that the dataclass lacks, or that replace the one of a field.
    """
    other_names = {column.name for column in other_columns}
    hints = get_type_hints(row_class, include_extras=True)
    columns = [_column(field, hints[field], field in key) for field in hints if field not in other_names]
    return Table(name, metadata, *columns, *other_columns, **options)


def _column(name: str, hint: Any, is_key: bool) -> Column[Any]:
    plain_hint, is_nullable = _without_none(hint)
    sql_type = next((mark for mark in _marks(hint) if isinstance(mark, TypeEngine)), None)
    if sql_type is None:
        while isinstance(plain_hint, NewType):
            plain_hint = plain_hint.__supertype__
        sql_type = next(SQL_TYPES[base] for base in plain_hint.__mro__ if base in SQL_TYPES)()
    return Column(name, sql_type, primary_key=is_key, nullable=is_nullable)


def _without_none(hint: Any) -> tuple[Any, bool]:
    """Returns the type of a field, and True if the field may also be None."""
    options = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    return options[0], len(options) > 1


def shown_as(row_class: type) -> dict[str, Callable[[Any], Any] | None]:
    """Returns a function for each field whose values users see in another form: JSON as its content, times as text."""
    hints = get_type_hints(row_class, include_extras=True)
    return {name: next(filter(callable, _marks(hint)), None) for name, hint in hints.items()}


def _marks(hint: Any) -> tuple[Any, ...]:
    return getattr(_without_none(hint)[0], "__metadata__", ())


def columns_of(table: Table, row_class: type) -> list[Column[Any]]:
    """Returns the table's columns in the order of the dataclass's fields."""
    return [table.c[field.name] for field in fields(row_class)]


def values_of(row: Any) -> dict[str, Any]:
    """Returns the column values of a row. Both drivers store a StrEnum as its text."""
    row_class: Any = type(row)
    names, values = _reader(row_class)
    return dict(zip(names, values(row), strict=True))


@cache
def _reader(row_class: type) -> tuple[list[str], Callable[[Any], Any]]:
    """Returns the names of the fields, and a function that returns all their values."""
    names = [field.name for field in fields(row_class)]
    return names, attrgetter(*names)


_INSERTS: dict[str, Any] = {"sqlite": sqlite.insert, "postgresql": postgresql.insert}
"""The INSERT of each dialect. Only a dialect's own INSERT can say what happens to a row that exists already."""


def insert_if_new(conn: Connection, table: Table, row: Any) -> bool:
    """Inserts a row, and returns True. Returns False if the table has a row with this primary key."""
    # A row is returned only if it was inserted. PostgreSQL's driver does not count the rows of this statement.
    return conn.execute(_insert_if_new(table, conn.dialect.name), values_of(row)).one_or_none() is not None


@cache
def _insert_if_new(table: Table, dialect: str) -> Any:
    return _INSERTS[dialect](table).on_conflict_do_nothing().returning(*table.primary_key)


def upsert(conn: Connection, table: Table, rows: list[dict[str, Any]]) -> None:
    """Inserts rows. If a row has the same primary key already, its other columns are replaced."""
    conn.execute(_upsert(table, conn.dialect.name), rows)


@cache
def _upsert(table: Table, dialect: str) -> Any:
    statement = _INSERTS[dialect](table)
    new_values = {column.name: statement.excluded[column.name] for column in table.c if not column.primary_key}
    return statement.on_conflict_do_update(index_elements=list(table.primary_key), set_=new_values)
