"""Changes rows for the maps `rename`, `keep`, `drop` and `labels`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from footplate.components.rows import BadRow, Row, column, kind, without
from footplate.contract.errors import did_you_mean


@dataclass(frozen=True)
class Rename:
    names: dict[str, str]

    def __call__(self, rows: list[Row]) -> list[Row]:
        for old in self.names:
            column(rows, old)
        for at, row in enumerate(rows):
            taken = [new for old, new in self.names.items() if new in row and new not in self.names and new != old]
            if taken:
                raise BadRow(at, f"there is a column {taken[0]!r} already", hint="drop it before")
        return [{self.names.get(name, name): value for name, value in row.items()} for row in rows]


@dataclass(frozen=True)
class Keep:
    names: tuple[str, ...]

    def __call__(self, rows: list[Row]) -> list[Row]:
        for name in self.names:
            column(rows, name)
        return [{name: row[name] for name in self.names} for row in rows]


@dataclass(frozen=True)
class Drop:
    names: tuple[str, ...]

    def __call__(self, rows: list[Row]) -> list[Row]:
        for name in self.names:
            column(rows, name)
        return [without(row, self.names) for row in rows]


@dataclass(frozen=True)
class Labels:
    column: str
    numbers: dict[str, int]

    def __call__(self, rows: list[Row]) -> list[Row]:
        values = column(rows, self.column)
        return [
            {**row, self.column: self._number(value, at)}
            for at, (row, value) in enumerate(zip(rows, values, strict=True))
        ]

    def _number(self, value: Any, at: int) -> Any:
        if isinstance(value, list):
            return [self._number(name, at) for name in value]
        if not isinstance(value, str):
            raise BadRow(at, f"column {self.column!r} holds {kind(value)}, but the name of a class is needed")
        if value not in self.numbers:
            names = ", ".join(list(self.numbers)[:20])
            raise BadRow(
                at, f"no class is named {value[:80]!r}. Known: {names}", hint=did_you_mean(value[:80], self.numbers)
            )
        return self.numbers[value]
