"""Streams of rows from files. A row is read when it is needed, and memory holds one row, or one batch of a table.

A stream's position is a file, the offset of the next row, and the row's number. An offset is a byte in files of lines,
and a row number in tables. Each of several loading processes passes over all rows, and yields only its own share.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from torch.utils.data import IterableDataset, get_worker_info

from footplate.components.arrow_rows import opened, row_of_batch, rows_of, schema_of
from footplate.components.lines import line_of
from footplate.components.rows import UNREADABLE, Row, reading, unreadable

State = dict[str, int]
UnreadRow = tuple[int, int, Callable[[], Row]]
"""The offset of a row, the offset of the next row, and a function that parses the row."""


class LineReader:
    """Reads files in which each line that is not empty is a row."""

    def __init__(self, row: Callable[[bytes], Row]) -> None:
        self.row = row

    def read(self, path: Path, offset: int) -> Iterator[UnreadRow]:
        """Yields the rows of a file from this offset on."""
        with reading(path), path.open("rb") as file:
            file.seek(offset)
            for line in file:
                begins, offset = offset, offset + len(line)
                if line.strip():
                    yield begins, offset, partial(self.row, line)

    def where(self, path: Path, offset: int) -> str:
        """Returns the position of a row for error messages."""
        return line_of(path, offset)


class ParquetReader:
    """Reads Parquet files, one row group after the other. A resume skips the groups before its position."""

    def __init__(self, paths: Sequence[Path], columns: list[str] | None) -> None:
        self.columns = list(schema_of(paths, [opened(path) for path in paths], columns).names)

    def read(self, path: Path, offset: int) -> Iterator[UnreadRow]:
        file, begins = opened(path), 0
        for group in range(file.num_row_groups):
            rows = file.metadata.row_group(group).num_rows
            if begins + rows <= offset:
                begins += rows
                continue
            # Without threads, because loading processes are forked and threads do not survive a fork.
            for batch in rows_of(path, file, self.columns, row_groups=[group], use_threads=False):
                for at in range(max(0, offset - begins), batch.num_rows):
                    yield begins + at, begins + at + 1, partial(row_of_batch, batch, at)
                begins += batch.num_rows

    def where(self, path: Path, offset: int) -> str:
        return f"{path}, row {offset}"


class NumberedReader:
    """Reads a dataset whose rows have numbers, so that formats which must be read completely can be streams, too."""

    def __init__(self, rows: Any) -> None:
        self.rows = rows

    def read(self, path: Path, offset: int) -> Iterator[UnreadRow]:
        for at in range(offset, len(self.rows)):
            yield at, at + 1, partial(self.rows.__getitem__, at)

    def where(self, path: Path, offset: int) -> str:
        return str(self.rows.where(offset))


RowReader = LineReader | ParquetReader | NumberedReader


class FileStream(IterableDataset[Row]):
    """A stream of rows from files. Its position can be saved and restored by `state_dict` and `load_state_dict`."""

    def __init__(self, paths: Sequence[Path], reader: RowReader, offset: int = 0, limit: int | None = None) -> None:
        self.paths, self.reader = list(paths), reader
        self.first, self.end = offset, None if limit is None else offset + limit
        self._file = self._begins = self._offset = self._row = 0
        self._has_restored = False

    def __iter__(self) -> Iterator[Row]:
        if not self._has_restored:
            self._file = self._begins = self._offset = self._row = 0
        self._has_restored = False
        info = get_worker_info()
        process, processes = (info.id, info.num_workers) if info else (0, 1)
        for make in self._all():
            at = self._row - 1 - self.first
            if at >= 0 and at % processes == process:
                try:
                    row = make()
                except UNREADABLE as error:
                    raise unreadable(self.where(), error) from error
                yield row

    def _all(self) -> Iterator[Callable[[], Row]]:
        while self._file < len(self.paths):
            for begins, offset, make in self.reader.read(self.paths[self._file], self._offset):
                if self.end is not None and self._row >= self.end:
                    return
                self._begins, self._offset, self._row = begins, offset, self._row + 1
                yield make
            self._file, self._offset = self._file + 1, 0

    def where(self) -> str:
        """Returns the file and the line of the last row, for error messages."""
        return self.reader.where(self.paths[min(self._file, len(self.paths) - 1)], self._begins)

    def state_dict(self) -> State:
        return {"file": self._file, "place": self._offset, "row": self._row}

    def load_state_dict(self, state: State) -> None:
        self._file, self._offset, self._row = state["file"], state["place"], state["row"]
        self._has_restored = True
