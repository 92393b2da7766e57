"""Datasets that a spec may name, from files. The runtime has replaced names such as `data://…` and patterns by paths.

No file is read into memory: lines.py keeps the offset of each line, and tables.py maps tables.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from footplate.components.arrow_rows import is_saved, parquet_rows, saved_rows
from footplate.components.component import needs
from footplate.components.file_streams import FileStream, LineReader, NumberedReader, ParquetReader
from footplate.components.lines import CsvRows, Lines, WholeFiles, json_row, selected, text_row
from footplate.components.repository import files_of
from footplate.contract.errors import DatasetError

Paths = Annotated[list[str], "Files under data://, read in this order; a name may be a pattern such as part-*.jsonl"]
Offset = Annotated[int, "The number of rows to skip at the beginning", Field(ge=0)]
Streaming = Annotated[
    bool, "Read rows one by one in the files' order, without reading the files first; needs max_steps"
]
Limit = Annotated[Annotated[int, Field(ge=1)] | None, "The largest number of rows; null reads all"]


def jsonl(*, paths: Paths, offset: Offset = 0, limit: Limit = None, streaming: Streaming = False) -> Any:
    """Rows of JSON lines files: each line is an object."""
    files = _files(paths)
    if streaming:
        return FileStream(files, LineReader(json_row), offset, limit)
    return selected(Lines(files), offset, limit)


def csv(
    *,
    paths: Paths,
    delimiter: Annotated[str | None, "One character; null is a comma, or a tab in .tsv files"] = None,
    columns: Annotated[list[str] | None, "Names of the columns, if the first line does not hold them"] = None,
    offset: Offset = 0,
    limit: Limit = None,
    streaming: Annotated[
        bool, "Read rows one by one in the files' order, after one pass that finds the column types; needs max_steps"
    ] = False,
) -> Any:
    """Rows of CSV and TSV files. A column that holds only numbers has numbers as values."""
    rows = selected(CsvRows(_files(paths), delimiter, columns), offset, limit)
    return _as_stream(rows) if streaming else rows


def text(
    *,
    paths: Paths,
    by: Annotated[Literal["line", "file"], "The unit of a row: a line that is not empty, or a whole file"] = "line",
    column: Annotated[str, "The name of the column with the text"] = "text",
    offset: Offset = 0,
    limit: Limit = None,
    streaming: Streaming = False,
) -> Any:
    """Rows of plain text in UTF-8."""
    files = _files(paths)
    if by == "file":
        rows = selected(WholeFiles(files, partial(text_row, column=column, is_file=True)), offset, limit)
        return _as_stream(rows) if streaming else rows
    row = partial(text_row, column=column)
    if streaming:
        return FileStream(files, LineReader(row), offset, limit)
    return selected(Lines(files, row), offset, limit)


@needs("pyarrow", extra="arrow")
def parquet(
    *,
    paths: Paths,
    columns: Annotated[list[str] | None, "The columns to read; null reads all"] = None,
    offset: Offset = 0,
    limit: Limit = None,
    streaming: Streaming = False,
) -> Any:
    """Rows of Parquet files, converted once to a memory-mapped Arrow file, or read one by one."""
    files = _files(paths)
    if streaming:
        return FileStream(files, ParquetReader(files, columns), offset, limit)
    return selected(parquet_rows(files, columns), offset, limit)


@needs("pyarrow", extra="arrow")
def dataset(
    *,
    path: Annotated[str, "Folder that datasets' save_to_disk wrote, or a dataset's repository: hub://owner/name"],
    config: Annotated[str | None, "The configuration of a repository; null uses its default"] = None,
    split: Annotated[str | None, "The split, such as train; null if there is only one"] = None,
    offset: Offset = 0,
    limit: Limit = None,
    streaming: Streaming = False,
) -> Any:
    """Rows of a Hugging Face dataset, with numbers, texts and lists of them."""
    folder = Path(path)
    if not is_saved(folder):
        kind, files = files_of(folder, config, split)
        factory: Any = {"parquet": parquet, "csv": csv, "jsonl": jsonl}[kind]
        return factory(paths=list(map(str, files)), offset=offset, limit=limit, streaming=streaming)
    if config is not None:
        raise DatasetError(
            f"{folder.name} was written by save_to_disk and has no configurations", hint="leave config out"
        )
    rows = selected(saved_rows(folder, split), offset, limit)
    return _as_stream(rows) if streaming else rows


def _files(paths: list[str]) -> list[Path]:
    if not paths:
        raise DatasetError("a dataset of files has no file", hint='write "paths": ["data://…"]')
    return [Path(path) for path in paths]


def _as_stream(rows: Any) -> Any:
    return FileStream([Path()], NumberedReader(rows))
