"""Rows of Parquet files, and of folders that `save_to_disk` of `datasets` wrote, read from memory-mapped files."""

from __future__ import annotations

import json
import tempfile
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

from footplate.components.rows import Row, not_chosen
from footplate.contract.errors import DatasetError, did_you_mean

AT_ONCE = 10_000


class TableRows:
    """Rows by number over memory-mapped batches of Arrow columns."""

    def __init__(self, batches: Sequence[Any], names: str) -> None:
        self.batches = [batch for batch in batches if batch.num_rows]
        self._before: list[int] = [0, *accumulate(batch.num_rows for batch in self.batches)]
        self._names = names
        if not self.batches:
            raise DatasetError(f"there is no row in {names}")

    def __len__(self) -> int:
        return self._before[-1]

    def __getitem__(self, index: int) -> Row:
        row = index + len(self) if index < 0 else index
        if not 0 <= row < len(self):
            raise IndexError(f"there is no row {index}, because the dataset has {len(self)} rows")
        at = bisect_right(self._before, row) - 1
        return row_of_batch(self.batches[at], row - self._before[at])

    def where(self, index: int) -> str:
        return f"{self._names}, row {index}"


def row_of_batch(batch: Any, at: int) -> Row:
    return batch.slice(at, 1).to_pylist()[0]  # type: ignore[no-any-return]


def parquet_rows(paths: list[Path], columns: list[str] | None) -> TableRows:
    """Converts Parquet files to one memory-mapped Arrow file, and returns its rows.

    The Arrow file is deleted at once, and the system frees its space when no process has it mapped any more.
    """
    import pyarrow

    files = [opened(path) for path in paths]
    schema = schema_of(paths, files, columns)
    with tempfile.NamedTemporaryFile(prefix="rows-", suffix=".arrow") as copy:
        with pyarrow.ipc.new_file(copy, schema) as writer:
            for path, file in zip(paths, files, strict=True):
                for batch in rows_of(path, file, schema.names):
                    writer.write_batch(batch)
        copy.flush()
        reader = pyarrow.ipc.open_file(pyarrow.memory_map(copy.name))
        batches = [reader.get_batch(at) for at in range(reader.num_record_batches)]
    return TableRows(batches, ", ".join(path.name for path in paths[:3]))


def opened(path: Path) -> Any:
    import pyarrow.parquet

    try:
        return pyarrow.parquet.ParquetFile(path)
    except (OSError, pyarrow.ArrowException) as error:
        raise DatasetError(f"{path} cannot be read as Parquet: {error}") from error


def schema_of(paths: Sequence[Path], files: list[Any], columns: list[str] | None) -> Any:
    import pyarrow

    schema = files[0].schema_arrow.remove_metadata()
    for path, file in zip(paths[1:], files[1:], strict=True):
        if not file.schema_arrow.remove_metadata().equals(schema):
            raise DatasetError(f"{path} has other columns, or other types of columns, than {paths[0].name}")
    for name in columns or ():
        if name not in schema.names:
            names = ", ".join(schema.names)
            raise DatasetError(
                f"{paths[0].name} has no column {name!r}, only: {names}", hint=did_you_mean(name, schema.names)
            )
    return schema if columns is None else pyarrow.schema([schema.field(name) for name in columns])


def rows_of(path: Path, file: Any, names: list[str], **how: Any) -> Iterator[Any]:
    import pyarrow

    try:
        yield from file.iter_batches(batch_size=AT_ONCE, columns=names, **how)
    except (OSError, pyarrow.ArrowException) as error:
        raise DatasetError(f"{path} cannot be read: {error}") from error


def is_saved(folder: Path) -> bool:
    """Returns True if `save_to_disk` wrote the folder, and False if the folder may be a dataset's repository."""
    return any((folder / name).is_file() for name in ("state.json", "dataset_dict.json"))


def saved_rows(folder: Path, split: str | None) -> TableRows:
    """Returns the rows of a folder that `save_to_disk` wrote, from the Arrow files that its state.json lists.

    The library `datasets` is not needed.
    """
    import pyarrow

    folder = _split(folder, split)
    try:
        data_files = json.loads((folder / "state.json").read_text())["_data_files"]
        names = [str(file["filename"]) for file in data_files]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DatasetError(
            f"{folder.name} is not a folder that save_to_disk wrote: its state.json cannot be read",
            hint="in Python: datasets.load_dataset(…).save_to_disk(folder)",
        ) from error
    batches: list[Any] = []
    for name in names:
        if Path(name).name != name:
            raise DatasetError(f"{folder.name}/state.json names a file outside of the folder: {name[:80]!r}")
        try:
            batches += pyarrow.ipc.open_stream(pyarrow.memory_map(str(folder / name)))
        except (OSError, pyarrow.ArrowException) as error:
            raise DatasetError(f"{folder / name} cannot be read: {error}") from error
    return TableRows(batches, folder.name)


def _split(folder: Path, split: str | None) -> Path:
    listing = folder / "dataset_dict.json"
    if not listing.is_file():
        if split is not None:
            raise DatasetError(f"{folder.name} holds one dataset and no splits", hint="leave split out")
        return folder
    try:
        splits = [str(name) for name in json.loads(listing.read_text())["splits"]]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DatasetError(f"{folder.name}/dataset_dict.json cannot be read: {error}") from error
    if split not in splits:
        raise not_chosen(folder.name, "split", split, splits)
    return folder / split
