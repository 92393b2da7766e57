"""Rows of files that are read line by line. Memory holds only the offset of each row, which is eight bytes per row.

Rows are read with `pread`, because forked processes share the current position of an open file.
"""

from __future__ import annotations

import csv
import io
import json
import os
from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy
from torch.utils.data import Subset

from footplate.components.rows import UNREADABLE, Row, is_stream, kind, reading, unreadable, where
from footplate.contract.errors import DatasetError
from footplate.contract.row_report import NUMBER as NUMBER_TEXT
from footplate.contract.row_report import WHOLE_NUMBER
from footplate.contract.spec_parts import Split

WHOLE, NUMBER, TEXT = 0, 1, 2
"""Types of columns. A column has the most general type of its values. `007` is text, because of its leading zeros."""


def json_row(content: bytes) -> Row:
    value = json.loads(content)
    if not isinstance(value, dict):
        raise DatasetError(f"a row must be a JSON object, but this line holds {kind(value)}")
    return value


def text_row(content: bytes, column: str, *, is_file: bool = False) -> Row:
    # Empty lines after a line belong to its row, and are ignored.
    text = content if is_file else content.partition(b"\n")[0].rstrip(b"\r")
    return {column: text.decode("utf-8-sig")}


class Lines:
    """Rows by number over several files, in which each line that is not empty is a row. `row` parses a line.

    Subclasses find other rows, and may parse a row in another way.
    """

    def __init__(self, paths: Sequence[Path], row: Callable[[bytes], Row] = json_row) -> None:
        self.paths, self.row = list(paths), row
        self.starts = [self._starts(path) for path in self.paths]
        self._before = [0, *accumulate(len(starts) - 1 for starts in self.starts)]
        if len(self) == 0:
            names = ", ".join(path.name for path in self.paths[:3])
            raise DatasetError(f"there is no row in {names}", hint="the files are empty, or hold empty lines only")

    def __len__(self) -> int:
        return self._before[-1]

    def __getitem__(self, index: int) -> Row:
        path, start, end = self._locate(index)
        with reading(path), path.open("rb", buffering=0) as file:
            content = os.pread(file.fileno(), end - start, start)
        try:
            return self._row(content, path)
        except UNREADABLE as error:
            raise unreadable(self.where(index), error) from error

    def where(self, index: int) -> str:
        """Returns a row's file and line number. Empty lines are counted, although they are not rows."""
        path, start, _ = self._locate(index)
        return line_of(path, start)

    def _locate(self, index: int) -> tuple[Path, int, int]:
        row = index + len(self) if index < 0 else index
        if not 0 <= row < len(self):
            raise IndexError(f"there is no row {index}, because the dataset has {len(self)} rows")
        file = bisect_right(self._before, row) - 1
        starts, at = self.starts[file], row - self._before[file]
        return self.paths[file], starts[at], starts[at + 1]

    def _starts(self, path: Path) -> array[int]:
        """Returns the offset of each row of a file, followed by the size of the file."""
        starts, offset = array("Q"), 0
        with reading(path), path.open("rb") as file:
            for line in file:
                if line.strip():
                    starts.append(offset)
                offset += len(line)
        starts.append(offset)
        return starts

    def _row(self, content: bytes, path: Path) -> Row:
        return self.row(content)


class WholeFiles(Lines):
    """The rows of files in which each file is one row. Empty files are left out."""

    def _starts(self, path: Path) -> array[int]:
        with reading(path):
            size = path.stat().st_size
        return array("Q", [0, size] if size else [size])


class CsvRows(Lines):
    """The rows of CSV files, by number. A quoted record may span several lines.

    One pass over the files finds the start of each record and the type of each column.
    """

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
            repeated_name = next(name for name in header if header.count(name) > 1)
            raise DatasetError(
                f"{path}: the first line names the column {repeated_name!r} twice",
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
        is_first = self.offset == 0
        self.offset += len(line)
        self.number += 1
        return line.decode("utf-8-sig" if is_first else "utf-8")


class Selection(Subset[Row]):
    """A selection of a dataset's rows, by their numbers."""

    def where(self, index: int) -> str:
        return where(self.dataset, self.indices[index])


def selected(rows: Any, offset: int, limit: int | None) -> Any:
    """Returns the rows without the first `offset` rows, and at most `limit` rows."""
    if offset < 0 or (limit is not None and limit < 1):
        raise DatasetError(f"offset is {offset} and limit {limit}: offset must be 0 or more, limit 1 or more")
    numbers = range(len(rows))[offset:][:limit]
    if not numbers:
        raise DatasetError(f"offset is {offset}, but there are only {len(rows)} rows", hint="use a smaller offset")
    return rows if len(numbers) == len(rows) else Selection(rows, numbers)


def split_rows(rows: Any, split: Split) -> tuple[Selection, Selection]:
    """Returns the rows to train on and the rows to evaluate on, both in the order of the file.

    numpy's RandomState draws the same numbers in every version, so a job that resumes after an upgrade has the same
    split.
    """
    if is_stream(rows):
        raise DatasetError(
            "data.split needs rows by number, and this dataset is a stream", hint="name a data.eval instead of split"
        )
    count = len(rows)
    if (problem := split.problem(count)) is not None:
        raise DatasetError(problem.detail, hint=problem.hint)
    held_out = split.held_out(count)
    order = numpy.random.RandomState(split.seed).permutation(count)
    # Arrays hold eight bytes for a number, and return Python's integers, which users' datasets may need.
    trained_on, evaluated_on = (array("q", numpy.sort(part).tobytes()) for part in (order[held_out:], order[:held_out]))
    return Selection(rows, trained_on), Selection(rows, evaluated_on)


def line_of(path: Path, offset: int) -> str:
    """Returns the file and line of an offset in bytes, such as `train.jsonl, line 7`."""
    try:
        with path.open("rb") as file:
            line = 1
            # In chunks, because files may be larger than memory.
            while offset > 0 and (chunk := file.read(min(offset, 1 << 20))):
                line += chunk.count(b"\n")
                offset -= len(chunk)
            return f"{path}, line {line}"
    except OSError:
        return str(path)
