"""Changes rows for the maps `rename`, `keep`, `drop` and `labels`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from footplate.components.rows import BadRow, Row, column, kind, without
from footplate.contract.errors import did_you_mean


def renamed(names: dict[str, str], rows: list[Row]) -> list[Row]:
    _require(names, rows)
    for at, row in enumerate(rows):
        colliding = [(old, new) for old, new in names.items() if new in row and new not in names and new != old]
        for old, new in colliding:
            detail = f"column {old!r} cannot be renamed to {new!r}, because there is already a column {new!r}"
            raise BadRow(at, detail, hint=f"remove column {new!r} with the map drop before the map rename")
    return [{names.get(name, name): value for name, value in row.items()} for row in rows]


def kept(names: Sequence[str], rows: list[Row]) -> list[Row]:
    _require(names, rows)
    return [{name: row[name] for name in names} for row in rows]


def dropped(names: Sequence[str], rows: list[Row]) -> list[Row]:
    _require(names, rows)
    return [without(row, names) for row in rows]


def _require(names: Iterable[str], rows: list[Row]) -> None:
    for name in names:
        column(rows, name)


@dataclass(frozen=True)
class Labels:
    """The change of the map `labels`, which replaces names of classes by their numbers."""

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
        # The name of a class may be a whole number, such as a rating from 1 to 5.
        if isinstance(value, int) and not isinstance(value, bool):
            value = str(value)
        if not isinstance(value, str):
            raise BadRow(at, f"column {self.column!r} holds {kind(value)}, but the name of a class is needed")
        if value not in self.numbers:
            names = ", ".join(list(self.numbers)[:20])
            raise BadRow(
                at, f"no class is named {value[:80]!r}. Known: {names}", hint=did_you_mean(value[:80], self.numbers)
            )
        return self.numbers[value]
