"""Datasets from files. Paths are real files here: names like `data://…` were resolved before."""

from __future__ import annotations

import json
import os
from array import array
from pathlib import Path
from typing import Annotated, Any

from contract.errors import DatasetError


def jsonl(*, paths: Annotated[list[str], "Files of one JSON object per line"]) -> JsonLines:
    """Rows of JSON lines files: objects whose keys are what the model's forward takes, and `labels`."""
    return JsonLines([Path(path) for path in paths])


class JsonLines:
    """Rows by number. Only where each line starts is held in memory: eight bytes per row.

    Rows are read at their place and not from a file's current one: that is shared with every process that was forked.
    """

    def __init__(self, paths: list[Path]) -> None:
        if not paths:
            raise DatasetError("files/jsonl was given no file")
        self.paths = paths
        self.starts = [_line_starts(path) for path in paths]

    def __len__(self) -> int:
        return sum(len(starts) - 1 for starts in self.starts)

    def __getitem__(self, index: int) -> dict[str, Any]:
        row = index + len(self) if index < 0 else index
        for path, starts in zip(self.paths, self.starts, strict=True):
            if 0 <= row < len(starts) - 1:
                return _row(path, starts[row], starts[row + 1])
            row -= len(starts) - 1
        raise IndexError(f"row {index} of {len(self)}")


def _row(path: Path, start: int, end: int) -> dict[str, Any]:
    try:
        with path.open("rb", buffering=0) as file:
            value = json.loads(os.pread(file.fileno(), end - start, start))
    except (OSError, ValueError) as error:
        raise DatasetError(f"{_place(path, start)}: {error}") from error
    if not isinstance(value, dict):
        raise DatasetError(f"{_place(path, start)}: a row is a JSON object, and this is a {type(value).__name__}")
    return value


def _place(path: Path, start: int) -> str:
    """The line's number as an editor shows it; empty lines count there, and are no rows here."""
    try:
        with path.open("rb") as file:
            before = file.read(start).count(b"\n")
    except OSError:
        return str(path)
    return f"{path}, line {before + 1}"


def _line_starts(path: Path) -> array[int]:
    """Where each row starts, and at last where the file ends."""
    starts, place = array("Q"), 0
    try:
        with path.open("rb") as file:
            for line in file:
                if line.strip():
                    starts.append(place)
                place += len(line)
    except OSError as error:
        raise DatasetError(f"{path} cannot be read: {error.strerror or error}") from error
    starts.append(place)
    return starts
