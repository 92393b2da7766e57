"""Checks at POST that the columns which `data.map` names are in the uploaded files.

The report of an upload lists a file's columns. The maps are followed in their order until one changes the columns in a
way that only the node knows.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from sqlalchemy import Connection

from footplate.contract.body import pointer_to
from footplate.contract.errors import NotFound, Problem, did_you_mean, listing
from footplate.contract.ids import FileId, is_file
from footplate.contract.row_report import NAME_CHARS
from footplate.contract.spec import JobSpec
from footplate.contract.spec_parts import Component
from service.store.content import FILES
from service.store.row_types import FileRow

READ_IN_PLACE: dict[str, dict[str, str | None]] = {
    "tokenize": {"column": None, "pair": None, "target": None},
    "labels": {"column": "label"},
}
"""The arguments of maps that name one column each, with their defaults."""
READERS = ("files/jsonl", "files/csv", "files/parquet")
"""The datasets whose rows have the columns that the report of an upload lists."""
MOST_SHOWN = 20


def missing_columns(conn: Connection, spec: JobSpec) -> list[Problem]:
    """Returns the problems of maps that name a column which no uploaded file of the training data has."""
    if spec.data.train is None or not spec.data.map:
        return []
    columns = columns_of(conn, spec.project, spec.data.train)
    return [] if columns is None else list(column_problems(columns, spec.data.map))


def column_problems(columns: set[str], maps: Sequence[Component]) -> Iterator[Problem]:
    """Yields a problem for each column that a map names and the rows lack, until the columns are not known."""
    for index, part in enumerate(maps):
        place = ("data", "map", index, "args")
        if changes_columns(part):
            names: Any = part.args["columns"]
            for at, name in enumerate(names):
                if name not in columns:
                    yield _missing(
                        pointer_to(*place, "columns", name if isinstance(names, dict) else at), name, columns
                    )
            columns = columns_after(part.use, names, columns)
        elif part.use in READ_IN_PLACE:
            for argument, default in READ_IN_PLACE[part.use].items():
                name = part.args.get(argument, default)
                if isinstance(name, str) and name not in columns:
                    yield _missing(pointer_to(*place, argument), name, columns)
            if part.use != "labels":
                return
        else:
            return


def changes_columns(component: Component) -> bool:
    """Returns True for a `rename`, `keep` or `drop` that can be applied to rows without a node."""
    kind = {"rename": dict, "keep": list, "drop": list}.get(component.use)
    columns: Any = component.args.get("columns")
    return kind is not None and isinstance(columns, kind) and all(isinstance(name, str) for name in columns)


def columns_after(use: str, names: dict[str, Any] | list[str], columns: set[str]) -> set[str]:
    """Returns the columns after a map. A missing column counts as present, so that it is reported once."""
    if isinstance(names, dict):
        return (columns - names.keys()) | {str(name) for name in names.values()}
    return set(names) if use == "keep" else columns - set(names)


def _missing(pointer: str, name: str, columns: set[str]) -> Problem:
    names = sorted(columns)
    detail = f"the rows have no column {name!r}; their columns: {listing(names, MOST_SHOWN) or 'none'}"
    return Problem(pointer, "no_column", detail, did_you_mean(name, names))


def uploaded_ids(dataset: Component) -> list[FileId]:
    """Returns the ids of a dataset's files. Returns [] if it has files that were not uploaded."""
    names: Any = dataset.args.get("paths")
    if not isinstance(names, list) or not all(isinstance(name, str) and is_file(name) for name in names):
        return []
    return [FileId(name) for name in names]


def uploads_of(conn: Connection, project: str, dataset: Component) -> list[FileRow]:
    """Returns the uploaded files of a dataset. Returns [] if it has other files, or if a file was just deleted.

    The transaction that writes the job reports the deleted file.
    """
    names = uploaded_ids(dataset)
    try:
        # Each file is read once, because its row has a long report, and a spec may name the file a thousand times.
        files = {name: FILES.get(conn, project, name) for name in set(names)}
    except NotFound:
        return []
    return [files[name] for name in names]


def columns_of(conn: Connection, project: str, dataset: Component) -> set[str] | None:
    """Returns the columns of a dataset's uploaded files, or None if their reports do not list all of them."""
    if dataset.use not in READERS or dataset.args.get("columns") or dataset.args.get("delimiter"):
        return None
    columns: set[str] = set()
    for file in uploads_of(conn, project, dataset):
        report = None if file.report is None else json.loads(file.report)
        if not report or report["notes"] or not report["is_complete"] or file.bad_rows:
            return None
        columns |= {column["name"] for column in report["columns"]}
    return columns if columns and all(len(name) < NAME_CHARS for name in columns) else None
