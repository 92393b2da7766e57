"""Rows that are read by their index. Datasets and maps are based on them. Errors about a row name its file and line.

All objects can be pickled, because data workers may be spawned.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from footplate.contract import conversations
from footplate.contract.errors import DatasetError, did_you_mean

Row = dict[str, Any]


class BadRow(DatasetError):
    """Raised by a map for a row that it cannot use. `at` is the row's index in the batch that the map received."""

    def __init__(self, at: int, message: str, *, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.at = at


class Mapped:
    """The rows of a dataset, changed when they are read. The function `change` takes several rows at once."""

    def __init__(self, rows: Any, change: Callable[[list[Row]], list[Row]]) -> None:
        require_rows(rows)
        self.rows, self.change = rows, change
        # Reads one row, so that a column that all rows lack is reported before training starts.
        self[0]

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


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Raises DatasetError in place of an OSError of the `with` block, which reads this file."""
    try:
        yield
    except OSError as error:
        raise DatasetError(f"{path} cannot be read: {error.strerror or error}") from error


UNREADABLE = (DatasetError, ValueError, RecursionError)
"""The errors of reading or parsing a row."""


def unreadable(where: str, error: Exception) -> DatasetError:
    """Returns the error for a row that cannot be read. `where` is its position, such as `train.jsonl, line 7`."""
    if isinstance(error, DatasetError):
        return DatasetError(f"{where}: {error.message}", hint=error.hint)
    if isinstance(error, RecursionError):
        return DatasetError(f"{where}: the row is nested too deep")
    hint = "save the file as UTF-8" if isinstance(error, UnicodeDecodeError) else None
    return DatasetError(f"{where}: {error}", hint=hint)


def is_stream(rows: Any) -> bool:
    """Returns True if `rows` can be iterated several times, but not indexed by row number. An iterator gives False."""
    return hasattr(rows, "__iter__") and not hasattr(rows, "__next__") and not _has_numbers(rows)


def _has_numbers(rows: Any) -> bool:
    """Returns True if rows can be read by number. torch's IterableDataset has __getitem__, but cannot be indexed."""
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


def for_each_set(sets: Any, change: Callable[[Any], Any]) -> Any:
    """Returns the results of `change` for evaluation data: by name for a dict of sets, else one result, or None."""
    if isinstance(sets, dict):
        return {name: change(rows) for name, rows in sets.items()}
    return None if sets is None else change(sets)


def copy_rows(rows: Any, indices: Sequence[int]) -> list[Row]:
    """Returns copies of rows, so that a map may change them."""
    fetch = getattr(rows, "__getitems__", None)
    fetched: Iterable[Any] = fetch(list(indices)) if fetch is not None else (rows[index] for index in indices)
    return [dict(row) for row in fetched]


def where(rows: Any, index: int) -> str:
    """Returns a row's position for errors: such as `train.jsonl, line 7`, or its number if the dataset has no files."""
    locate = getattr(rows, "where", None)
    return str(locate(index)) if callable(locate) else f"row {index}"


def not_chosen(subject: str, argument: str, name: str | None, choices: Collection[str]) -> DatasetError:
    """Returns the error for an argument that is missing, or that names none of the subject's choices."""
    problem = f"needs the argument {argument}" if name is None else f"has no {argument} {name!r}"
    text = f"{subject} {problem}; its {argument}s are: {', '.join(choices)}"
    return DatasetError(text, hint=did_you_mean(name or "", choices))


def column(rows: Sequence[Row], name: str) -> list[Any]:
    """Returns the values of a column. Raises BadRow for the first row that lacks the column."""
    for at, row in enumerate(rows):
        if name not in row:
            detail = f"there is no column {name!r}, only: {', '.join(map(str, row)) or 'none'}"
            raise BadRow(at, detail, hint=did_you_mean(name, map(str, row)))
    return [row[name] for row in rows]


def texts(rows: Sequence[Row], name: str) -> list[str]:
    values = column(rows, name)
    for at, value in enumerate(values):
        if not isinstance(value, str):
            raise BadRow(at, f"column {name!r} holds {kind(value)}, but text is needed", hint=None)
    return values


def plain_messages(messages: Sequence[Any], at: int, name: str, *, weights: bool = False) -> list[Any]:
    """Returns the messages of a chat with texts as contents. Raises BadRow for a part that is not a text.

    A message of weight 0 raises BadRow, too, unless `weights` is true because the caller leaves such messages out.
    """
    plain = []
    for index, message in enumerate(messages):
        if not weights and isinstance(message, dict) and message.get("weight") == 0:
            detail = f"column {name!r}, at {index}/weight: 0 is not possible if the model learns all words"
            raise BadRow(at, detail, hint='set "assistant_only_loss": true in the arguments of trl/sft')
        try:
            plain.append(conversations.plain(message) if isinstance(message, dict) else message)
        except ValueError as error:
            raise BadRow(at, f"column {name!r}, at {index}/content: {error}") from None
    return plain


def kind(value: Any) -> str:
    return "null" if value is None else f"a {type(value).__name__}"


def without(row: Row, names: Iterable[str | None]) -> Row:
    removed_names = frozenset(names)
    return {name: value for name, value in row.items() if name not in removed_names}
