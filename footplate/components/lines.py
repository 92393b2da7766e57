"""Rows of files that are read line by line. Memory holds only the offset of each row, which is eight bytes per row.

Rows are read with `pread`, because forked processes share the current position of an open file.
"""

from __future__ import annotations

import json
import os
from array import array
from bisect import bisect_right
from collections.abc import Callable, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy
from torch.utils.data import Subset

from footplate.components.rows import UNREADABLE, Row, is_stream, kind, reading, unreadable, where
from footplate.contract.errors import DatasetError
from footplate.contract.spec_parts import Split


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
