"""Datasets from files. Paths are real files here: names like `data://…` were resolved before, and patterns too.

None is read into memory: of lines it is held where each begins (lines.py), of tables they are mapped (tables.py).
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from contract.errors import DatasetError
from worker.components.needs import needs

Paths = Annotated[list[str], "Files under data://, read in this order; a name may be a pattern such as part-*.jsonl"]
Offset = Annotated[int, "How many rows are passed over at the beginning", Field(ge=0)]
Limit = Annotated[Annotated[int, Field(ge=1)] | None, "How many rows at most; null is all of them"]


def jsonl(*, paths: Paths, offset: Offset = 0, limit: Limit = None) -> Any:
    """Rows of JSON lines files: each line is an object."""
    from worker.components.lines import JsonLines, part

    return part(JsonLines([Path(path) for path in paths]), offset, limit)


def csv(
    *,
    paths: Paths,
    delimiter: Annotated[str | None, "One character; null is a comma, or a tab in .tsv files"] = None,
    columns: Annotated[list[str] | None, "Names of the columns, where the first line does not tell them"] = None,
    offset: Offset = 0,
    limit: Limit = None,
) -> Any:
    """Rows of CSV and TSV files. A column all of whose values are numbers is one of numbers."""
    from worker.components.csv_rows import CsvRows
    from worker.components.lines import part

    return part(CsvRows([Path(path) for path in paths], delimiter, columns), offset, limit)


def text(
    *,
    paths: Paths,
    by: Annotated[Literal["line", "file"], "What a row is: a line that is not empty, or a whole file"] = "line",
    column: Annotated[str, "What the text is called"] = "text",
    offset: Offset = 0,
    limit: Limit = None,
) -> Any:
    """Rows of plain text in UTF-8."""
    from worker.components.lines import TextFiles, TextLines, part

    files = [Path(path) for path in paths]
    return part(TextLines(files, column) if by == "line" else TextFiles(files, column), offset, limit)


@needs("pyarrow", extra="arrow")
def parquet(
    *,
    paths: Paths,
    columns: Annotated[list[str] | None, "Which columns to read; null is all of them"] = None,
    offset: Offset = 0,
    limit: Limit = None,
) -> Any:
    """Rows of Parquet files, read once into a mapped file of Arrow's."""
    from worker.components.lines import part
    from worker.components.tables import parquet_rows

    return part(parquet_rows([Path(path) for path in paths], columns), offset, limit)


@needs("pyarrow", extra="arrow")
def dataset(
    *,
    path: Annotated[str, "Folder that datasets' save_to_disk wrote, or a dataset's repository: hub://owner/name"],
    config: Annotated[str | None, "Which of a repository's configurations; null is its default one"] = None,
    split: Annotated[str | None, "Which of several, such as train; null where there is one"] = None,
    offset: Offset = 0,
    limit: Limit = None,
) -> Any:
    """Rows of a dataset of Hugging Face's: numbers, texts and lists of them."""
    from worker.components.lines import part
    from worker.components.repository import repository_rows
    from worker.components.tables import is_saved, saved_rows

    folder = Path(path)
    if not is_saved(folder):
        return part(repository_rows(folder, config, split), offset, limit)
    if config is not None:
        raise DatasetError(
            f"{folder.name} was written by save_to_disk and has no configurations", hint="leave config out"
        )
    return part(saved_rows(folder, split), offset, limit)
