"""Describes the rows of a data file: columns, types, and the first bad rows with their numbers.

    RowReport().read(Path("rows.jsonl"), "jsonl").as_json()       reports the rows of a file
    report.add(number, row), report.bad(number, problem)          adds rows that the caller has read

Only the standard library is imported, because the service reads uploads in a child process that has to start fast.
Whenever a limit leaves out rows or columns, `notes` in the report says so.
"""

from __future__ import annotations

import csv
import json
import re
import time
from array import array
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

Row = dict[str, Any]

WHOLE_NUMBER = re.compile(r"-?(0|[1-9]\d{0,17})$")
NUMBER = re.compile(r"-?(0|[1-9]\d*)(\.\d+)?([eE][-+]?\d+)?$")
"""Cells of CSV that match are numbers. `007` does not match, because a number would lose the zeros."""

MOST_COLUMNS = 100
MOST_BAD_ROWS = 20
MOST_LINE_BYTES = 16 * 1024 * 1024
csv.field_size_limit(MOST_LINE_BYTES)
# Python's own limit is 128 KiB, and a document in a cell may be longer. Nodes read CSV with this limit, too. Without
# any limit, a missing quote would make the rest of a large file one value.
NAME_CHARS = 100
SHOWN_CHARS = 80
SKIPPED_BYTES = 1024 * 1024
MOST_QUOTED = 1000
"""The number of bytes of an unreadable line that are searched for quotes. A line with only single ones gets a hint."""
ROWS_PER_TIME_CHECK = 64
"""The number of rows that are read between two checks whether the deadline has passed."""


class RowReport:
    """Collects the columns, types and problems of rows that are added one by one."""

    def __init__(self, *, count_tokens: Callable[[str], int] | None = None, deadline: float | None = None) -> None:
        """`count_tokens` returns a text's length in tokens. Reading ends at `deadline`, a time of `time.monotonic`."""
        self.rows, self.bad_rows = 0, 0
        self.is_complete = True
        self.notes: list[str] = []
        self._first = 0
        self._columns: dict[str, _Column] = {}
        self._first_bad: list[dict[str, Any]] = []
        self._count_tokens, self._deadline = count_tokens, deadline
        self._rows_until_time_check = ROWS_PER_TIME_CHECK

    def read(self, path: Path, kind: str) -> RowReport:
        """Adds the rows of a file until its end or the deadline, and returns this report.

        `kind` is jsonl, csv, tsv or txt.
        """
        with path.open("rb") as file:
            for number, content, problem in _READERS[kind](file, self):
                if problem is not None:
                    self.bad(number, problem)
                else:
                    self.add(number, content)
                if self.stop_if_late():
                    break
        return self

    def add(self, number: int, row: Row) -> None:
        """Adds a row to the report: counts the row, and its value in each column."""
        self.rows += 1
        self._first = self._first or number
        for name, value in row.items():
            column = self._columns.get(name)
            if column is None:
                if len(self._columns) == MOST_COLUMNS:
                    self._note_once(f"only the first {MOST_COLUMNS} columns are listed")
                    continue
                # A column that first occurs in a later row is missing in all rows before that row.
                column = self._columns[name] = _Column(self._first if self.rows > 1 else None)
            column.add(number, value, self._count_tokens)
        if len(row) < len(self._columns):
            for name, column in self._columns.items():
                if column.first_missing is None and name not in row:
                    column.first_missing = number

    def bad(self, number: int, problem: str) -> None:
        """Counts a row that cannot be used, and keeps the problem of the first such rows."""
        self.bad_rows += 1
        if len(self._first_bad) < MOST_BAD_ROWS:
            self._first_bad.append({"number": number, "problem": problem})

    def stop_if_late(self) -> bool:
        """Returns True and adds a note if the deadline has passed. Compares the time only at every 64th row."""
        self._rows_until_time_check -= 1
        if self._deadline is None or self._rows_until_time_check > 0:
            return False
        self._rows_until_time_check = ROWS_PER_TIME_CHECK
        if time.monotonic() < self._deadline:
            return False
        self.stop(f"the check ended after {self.rows + self.bad_rows:,} rows, because the file is large")
        return True

    def stop(self, why: str) -> None:
        """Marks the report as incomplete, with the reason."""
        self.is_complete = False
        self._note_once(why)

    def as_json(self) -> dict[str, Any]:
        return {
            "rows": self.rows,
            "bad_rows": self.bad_rows,
            "columns": [column.as_json(name, self.rows) for name, column in self._columns.items()],
            "first_bad": self._first_bad,
            "is_complete": self.is_complete,
            "notes": self.notes,
        }

    def _note_once(self, note: str) -> None:
        if note not in self.notes:
            self.notes.append(note)


class _Column:
    """Collects the types of one column's values, and the lengths of its texts."""

    def __init__(self, first_missing: int | None) -> None:
        self.types: dict[str, list[int]] = {}
        self.longest: int | None = None
        self.first_missing = first_missing
        self._tokens = array("Q")

    def add(self, number: int, value: Any, count_tokens: Callable[[str], int] | None) -> None:
        kind = type_of(value)
        if kind in self.types:
            self.types[kind][0] += 1
        else:
            self.types[kind] = [1, number]
        if kind in ("string", "array"):
            self.longest = max(self.longest or 0, len(value))
        if count_tokens is not None and (texts := _texts(value)):
            self._tokens.append(sum(map(count_tokens, texts)))

    def as_json(self, name: str, rows: int) -> dict[str, Any]:
        missing_count = rows - sum(count for count, _ in self.types.values())
        return {
            "name": name[:NAME_CHARS],
            "types": [
                {"type": kind, "rows": count, "first": first_number}
                for kind, (count, first_number) in sorted(self.types.items(), key=lambda item: -item[1][0])
            ],
            "missing": missing_count,
            "first_missing": self.first_missing if missing_count else None,
            "longest": self.longest,
            "tokens": _spread(self._tokens),
        }


def type_of(value: Any) -> str:
    """Returns JSON's name of a value's type, such as `integer`. Returns the class name for types that JSON lacks."""
    return _TYPES.get(type(value), type(value).__name__)


_TYPES: dict[type, str] = {
    str: "string", int: "integer", float: "number", bool: "boolean", type(None): "null", list: "array", dict: "object",
}  # fmt: skip


def _texts(value: Any) -> list[str]:
    """Returns the texts in a value: a string itself, or the contents of a conversation's messages."""
    if isinstance(value, str):
        return [value]
    if not isinstance(value, list):
        return []
    contents = [item.get("content") for item in value if isinstance(item, dict)]
    return [content for content in contents if isinstance(content, str)]


def _spread(lengths: Sequence[int]) -> dict[str, int] | None:
    if not lengths:
        return None
    ordered = sorted(lengths)
    last_index = len(ordered) - 1
    return {
        "least": ordered[0],
        "median": ordered[last_index // 2],
        "p95": ordered[round(last_index * 0.95)],
        "most": ordered[last_index],
        "total": sum(ordered),
    }


Read = Iterator[tuple[int, Any, str | None]]
"""Yields for each row its line number, its content, and its problem or None."""


def _lines(file: Any, report: RowReport) -> Iterator[tuple[int, bytes]]:
    """Yields a file's lines with their numbers, from 1. Leaves out lines of more than MOST_LINE_BYTES."""
    number = 0
    while line := file.readline(MOST_LINE_BYTES):
        number += 1
        if len(line) == MOST_LINE_BYTES and not line.endswith(b"\n"):
            while (skipped_part := file.readline(SKIPPED_BYTES)) and not skipped_part.endswith(b"\n"):
                pass
            report.stop(f"line {number} is not checked: it has more than {MOST_LINE_BYTES >> 20} MiB")
            continue
        yield number, line


def _json_lines(file: Any, report: RowReport) -> Read:
    for number, line in _lines(file, report):
        if line.strip():
            yield number, *_json_row(line)


def _json_row(line: bytes) -> tuple[Any, str | None]:
    try:
        row = json.loads(line)
    except RecursionError:
        return None, "the row is nested too deep"
    except UnicodeDecodeError as error:
        return None, _not_utf8(error)
    except json.JSONDecodeError as error:
        quotes = "; JSON needs double quotes" if b"'" in line[:MOST_QUOTED] and b'"' not in line[:MOST_QUOTED] else ""
        where = f"{error.msg} at character {error.pos + 1}{quotes}"
        return None, f"the line is not JSON: {where}. The line begins with {_beginning(line)}"
    except ValueError as error:
        return None, f"the line is not JSON: {error}"
    return (
        (row, None)
        if isinstance(row, dict)
        else (None, f"the line is JSON of the type {type_of(row)}, but a row is an object")
    )


def _text_lines(file: Any, report: RowReport) -> Read:
    for number, line in _lines(file, report):
        if line.strip():
            try:
                yield number, {"text": line.rstrip(b"\r\n").decode("utf-8-sig" if number == 1 else "utf-8")}, None
            except UnicodeDecodeError as error:
                yield number, None, _not_utf8(error)


def _tables(delimiter: str) -> Callable[[Any, RowReport], Read]:
    def read(file: Any, report: RowReport) -> Read:
        lines = _TextLines(_lines(file, report))
        records = csv.reader(lines, delimiter=delimiter, strict=True)
        names: list[str] | None = None
        while True:
            first_number = lines.number + 1
            try:
                record = next(records)
            except StopIteration:
                return
            except UnicodeDecodeError as error:
                yield first_number, None, _not_utf8(error)
                continue
            except csv.Error as error:
                yield first_number, None, f"the row is not CSV: {error}"
                continue
            if names is None:
                names = record
                if problem := _of_names(names, report):
                    yield first_number, None, problem
            elif record and len(record) != len(names):
                values = f"the row has {len(record)} values, and there are {len(names)} columns: {', '.join(names)}"
                yield first_number, None, f"{values[:300]}. Put quotes around values that hold the delimiter"
            elif record:
                yield first_number, dict(zip(names, map(_cell, record), strict=True)), None

    return read


def _of_names(names: Sequence[str], report: RowReport) -> str | None:
    """Returns the problem of the header line, or None. A header that looks like values only gets a note."""
    repeated_name = next((name for index, name in enumerate(names) if name in names[:index]), None)
    if repeated_name is not None:
        return f"the first line names the column {repeated_name[:NAME_CHARS]!r} twice"
    if len(names) == 1 and (delimiter := next((mark for mark in ";\t|" if mark in names[0]), None)):
        report.notes.append(
            f"there is one column, and its name contains {delimiter!r}. If this character is the delimiter, set it: "
            f'{{"use": "files/csv", "args": {{"paths": […], "delimiter": {json.dumps(delimiter)}}}}}'
        )
    if any(NUMBER.match(name) for name in names):
        report.notes.append(
            "the first line was read as the names of the columns, but contains a number. If the line is a row, "
            'name the columns: {"use": "files/csv", "args": {"paths": […], "columns": ["text", "label"]}}'
        )
    return None


def _cell(text: str) -> Any:
    """Returns a cell of CSV as None, a number or a text, by its content alone.

    In training, a column gets the most general type of all its cells.
    """
    if not text:
        return None
    return int(text) if WHOLE_NUMBER.match(text) else float(text) if NUMBER.match(text) else text


class _TextLines:
    """Iterates over lines as text. After the error of a line that is not UTF-8, the iteration can go on."""

    def __init__(self, lines: Iterator[tuple[int, bytes]]) -> None:
        self._lines, self.number = lines, 0

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        self.number, line = next(self._lines)
        return line.decode("utf-8-sig" if self.number == 1 else "utf-8")


_READERS: dict[str, Callable[[Any, RowReport], Read]] = {
    "jsonl": _json_lines,
    "csv": _tables(","),
    "tsv": _tables("\t"),
    "txt": _text_lines,
}


def _not_utf8(error: UnicodeDecodeError) -> str:
    return f"the line is not UTF-8: byte {error.start + 1} is 0x{error.object[error.start]:02x}"


def _beginning(line: bytes) -> str:
    return repr(line[:SHOWN_CHARS].decode("utf-8", "replace").strip())
