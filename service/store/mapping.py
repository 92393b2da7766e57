"""Converts between rows of a table and frozen dataclasses with the same field names."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import fields
from enum import Enum
from typing import Any

from sqlalchemy import Column, Table
from sqlalchemy.dialects import postgresql, sqlite


def columns_of(table: Table, row_class: type) -> list[Column[Any]]:
    """Returns the table's columns in the order of the dataclass's fields."""
    return [table.c[field.name] for field in fields(row_class)]


def values_of(row: Any) -> dict[str, Any]:
    """Returns the column values of a row. Enums become plain values, because drivers treat them differently."""
    return plain({field.name: getattr(row, field.name) for field in fields(row)})


def upsert(table: Table) -> dict[str, Any]:
    """Returns an INSERT by dialect. If a row with the same primary key exists, its other columns are replaced."""
    statements: dict[str, Any] = {"sqlite": sqlite.insert(table), "postgresql": postgresql.insert(table)}
    key = [column.name for column in table.primary_key]
    others = [column.name for column in table.c if column.name not in key]
    return {
        dialect: statement.on_conflict_do_update(
            index_elements=key, set_={name: statement.excluded[name] for name in others}
        )
        for dialect, statement in statements.items()
    }


def plain(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value.value if isinstance(value, Enum) else value for name, value in values.items()}


def plain_list(values: Iterable[Any]) -> list[Any]:
    return [value.value if isinstance(value, Enum) else value for value in values]
