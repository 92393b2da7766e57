"""Rows by number, the base of datasets and maps. A row is made when it is read, and errors name its source.

Everything here can be pickled, for data workers that are started and not forked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from footplate.contract.errors import DatasetError, did_you_mean

Row = dict[str, Any]


class BadRow(DatasetError):
    """One of several rows cannot be used. `at` is its index among them, and the caller adds the file and line."""

    def __init__(self, at: int, message: str, *, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.at = at


class Mapped:
    """Rows changed by a function that takes several rows at once."""

    def __init__(self, rows: Any, change: Callable[[list[Row]], list[Row]]) -> None:
        require_rows(rows)
        self.rows, self.change = rows, change
        # Reads one row, so that a column that all rows lack is reported before training starts.
        self.first = self[0]

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Row:
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[Row]:
        try:
            return self.change(copy_rows(self.rows, indices))
        except BadRow as bad:
            raise DatasetError(f"{where(self.rows, indices[bad.at])}: {bad.message}", hint=bad.hint) from None

    def where(self, index: int) -> str:
        return where(self.rows, index)


def is_stream(rows: Any) -> bool:
    """Returns True for an iterable without numbers. An iterator is refused, because it cannot be read twice."""
    return hasattr(rows, "__iter__") and not hasattr(rows, "__next__") and not _has_numbers(rows)


def _has_numbers(rows: Any) -> bool:
    """Returns True for rows by number. torch's IterableDataset is excluded, because its __getitem__ does not work."""
    from torch.utils.data import IterableDataset

    return hasattr(rows, "__getitem__") and hasattr(rows, "__len__") and not isinstance(rows, IterableDataset)


def require_rows(rows: Any) -> None:
    if not _has_numbers(rows):
        raise DatasetError(
            f"a map needs rows by number, or a stream that can be read again; a {type(rows).__name__} is neither",
            hint="give it __getitem__ and __len__, or make it an IterableDataset of torch's",
        )
    if len(rows) == 0:
        raise DatasetError("a map received a dataset without rows", hint="check data.train and data.eval")


def copy_rows(rows: Any, indices: Sequence[int]) -> list[Row]:
    """Returns copies of rows, so that a map may change them."""
    fetch = getattr(rows, "__getitems__", None)
    fetched: Iterable[Any] = fetch(list(indices)) if fetch is not None else (rows[index] for index in indices)
    return [dict(row) for row in fetched]


def where(rows: Any, index: int) -> str:
    """Returns `train.jsonl, line 7`, or the row's number for a dataset without files."""
    tells = getattr(rows, "where", None)
    return str(tells(index)) if callable(tells) else f"row {index}"


def column(rows: Sequence[Row], name: str) -> list[Any]:
    """Returns one value of each row. A row without it raises an error with the nearest name."""
    for at, row in enumerate(rows):
        if name not in row:
            raise BadRow(at, no_column(name, row), hint=did_you_mean(name, map(str, row)))
    return [row[name] for row in rows]


def no_column(name: str, row: Mapping[str, Any]) -> str:
    return f"there is no column {name!r}, only: {', '.join(map(str, row)) or 'none'}"


def texts(rows: Sequence[Row], name: str) -> list[str]:
    values = column(rows, name)
    for at, value in enumerate(values):
        if not isinstance(value, str):
            raise BadRow(at, f"column {name!r} holds {kind(value)}, but text is needed", hint=None)
    return values


def kind(value: Any) -> str:
    return "null" if value is None else f"a {type(value).__name__}"


def without(row: Row, names: Iterable[str | None]) -> Row:
    gone = frozenset(names)
    return {name: value for name, value in row.items() if name not in gone}
