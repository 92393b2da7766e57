"""Rows of CSV files. One pass finds the start of each record and the type of each column."""

from __future__ import annotations

import csv
import io
from array import array
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from footplate.components.lines import Lines
from footplate.components.rows import Row, reading, unreadable
from footplate.contract.errors import DatasetError
from footplate.contract.row_report import NUMBER as NUMBER_TEXT
from footplate.contract.row_report import WHOLE_NUMBER

WHOLE, NUMBER, TEXT = 0, 1, 2
"""Types of columns. A column has the most general type of its values. `007` is text, because of its leading zeros."""


class CsvRows(Lines):
    """The rows of CSV files, by number. A quoted record may span several lines."""

    def __init__(self, paths: Sequence[Path], delimiter: str | None, columns: list[str] | None) -> None:
        if delimiter is not None and len(delimiter) != 1:
            raise DatasetError(f"delimiter is {delimiter!r}, but one character is needed", hint='a tab is "\\t"')
        self.delimiter, self.columns, self._given = delimiter, columns, columns is not None
        self.kinds: list[int] = []
        super().__init__(paths)

    def _starts(self, path: Path) -> array[int]:
        starts = array("Q")
        with reading(path), path.open("rb") as file:
            lines = _Counted(file)
            for start, record in self._records(lines, path):
                starts.append(start)
                self._learn(record)
        starts.append(lines.offset)
        return starts

    def _records(self, lines: _Counted, path: Path) -> Iterator[tuple[int, list[str]]]:
        reader = csv.reader(lines, delimiter=self._delimiter(path), strict=True)
        try:
            if not self._given:
                self._learn_names(next(reader, []), path)
            start = lines.offset
            for record in reader:
                names = self.columns or []
                if record and len(record) != len(names):
                    raise DatasetError(
                        f"{path}, line {lines.number}: {len(record)} values, but there are {len(names)} columns: "
                        f"{', '.join(names)}",
                        hint="put quotes around values that hold the delimiter, or set another delimiter",
                    )
                if record:
                    yield start, record
                start = lines.offset
        except (csv.Error, UnicodeDecodeError) as error:
            raise unreadable(f"{path}, line {lines.number}", error) from error

    def _learn_names(self, header: list[str], path: Path) -> None:
        if len(set(header)) != len(header):
            twice = next(name for name in header if header.count(name) > 1)
            raise DatasetError(
                f"{path}: the first line names the column {twice!r} twice",
                hint="set the argument columns to the names of all columns",
            )
        if self.columns is not None and header != self.columns:
            raise DatasetError(
                f"{path} has the columns {', '.join(header)}, but the file before it has {', '.join(self.columns)}"
            )
        self.columns = header

    def _learn(self, record: list[str]) -> None:
        self.kinds = self.kinds or [WHOLE] * len(record)
        for at, value in enumerate(record):
            if self.kinds[at] != TEXT and value:
                kind = WHOLE if WHOLE_NUMBER.match(value) else NUMBER if NUMBER_TEXT.match(value) else TEXT
                self.kinds[at] = max(self.kinds[at], kind)

    def _row(self, content: bytes, path: Path) -> Row:
        text = io.StringIO(content.decode("utf-8-sig"), newline="")
        record = next(csv.reader(text, delimiter=self._delimiter(path), strict=True))
        return dict(zip(self.columns or [], map(_value, record, self.kinds), strict=True))

    def _delimiter(self, path: Path) -> str:
        return self.delimiter or ("\t" if path.suffix.lower() == ".tsv" else ",")


def _value(text: str, kind: int) -> Any:
    """Converts a field to its column's type. An empty field is None in a column of numbers, else an empty text."""
    if kind == TEXT:
        return text
    return None if not text else int(text) if kind == WHOLE else float(text)


class _Counted:
    """Iterates over a file's lines as text, and tracks the offset of the next line and the number of lines read."""

    def __init__(self, file: Any) -> None:
        self._file, self.offset, self.number = file, 0, 0

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        line: bytes = next(self._file)
        first = self.offset == 0
        self.offset += len(line)
        self.number += 1
        return line.decode("utf-8-sig" if first else "utf-8")
