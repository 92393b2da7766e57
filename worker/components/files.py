"""Datasets from files. Paths are real files here: names like `data://…` were resolved before."""

from __future__ import annotations

import json
from array import array
from pathlib import Path
from typing import Annotated, Any

from contract.errors import DatasetError


def jsonl(*, paths: Annotated[list[str], "Files of one JSON object per line"]) -> JsonLines:
    """Rows of JSON lines files, read when they are needed."""
    return JsonLines([Path(path) for path in paths])


class JsonLines:
    """Rows by number. Only where each line starts is held in memory: eight bytes per row."""

    def __init__(self, paths: list[Path]) -> None:
        if not paths:
            raise DatasetError("files/jsonl was given no file")
        self.paths = paths
        self.starts = [_line_starts(path) for path in paths]
        self._open: dict[int, Any] = {}

    def __len__(self) -> int:
        return sum(len(starts) for starts in self.starts)

    def __getitem__(self, index: int) -> dict[str, Any]:
        if index < 0:
            index += len(self)
        row = index
        for file, starts in enumerate(self.starts):
            if 0 <= row < len(starts):
                return self._row(file, row)
            row -= len(starts)
        raise IndexError(f"row {index} of {len(self)}")

    def _row(self, file: int, row: int) -> dict[str, Any]:
        try:
            handle = self._handle(file)
            handle.seek(self.starts[file][row])
            value = json.loads(handle.readline())
        except (OSError, ValueError) as error:
            raise DatasetError(f"{self._place(file, row)}: {error}") from error
        if not isinstance(value, dict):
            raise DatasetError(f"{self._place(file, row)}: a row is a JSON object, and this is {type(value).__name__}")
        return value

    def _handle(self, file: int) -> Any:
        if file not in self._open:
            self._open[file] = self.paths[file].open("rb")
        return self._open[file]

    def _place(self, file: int, row: int) -> str:
        """The line's number as an editor shows it; empty lines count there, and are no rows here."""
        try:
            with self.paths[file].open("rb") as handle:
                line = handle.read(self.starts[file][row]).count(b"\n") + 1
        except OSError:
            return str(self.paths[file])
        return f"{self.paths[file]}, line {line}"

    def __getstate__(self) -> dict[str, Any]:
        """A loading process opens the files itself: a shared handle would share its position."""
        return {**self.__dict__, "_open": {}}


def _line_starts(path: Path) -> array[int]:
    starts, place = array("Q"), 0
    try:
        with path.open("rb") as handle:
            for line in handle:
                if line.strip():
                    starts.append(place)
                place += len(line)
    except OSError as error:
        raise DatasetError(f"{path} cannot be read: {error.strerror or error}") from error
    return starts
