"""Checks uploaded files at POST: if the job's trainer can use the columns, and if rows are left after the split.

The node checks every row before it trains. Here only the beginning of JSON lines is read, because the POST waits.
The columns of other files and the number of rows are known from the report of the upload.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

from sqlalchemy import Connection

from footplate.contract import layout
from footplate.contract.body import pointer_to
from footplate.contract.components import Catalogue
from footplate.contract.errors import Problem
from footplate.contract.row_formats import RowForms, Schema
from footplate.contract.spec import JobSpec
from footplate.contract.spec_parts import Component
from service.artifact_files import Store, open_below
from service.jobs.mapped_columns import changes_columns, columns_after, columns_of, uploaded_ids, uploads_of

HEAD_BYTES = 64 * 1024
"""The most bytes that are read from all files of a spec together. The check takes up to 50 ms of CPU (2026-11-23)."""
MOST_PROBLEMS = 5


def wrong_rows(spec: JobSpec, catalogue: Catalogue, store: Store) -> list[Problem]:
    """Returns the problems of the first rows of uploaded JSON lines. Returns [] if only a node can apply a map."""
    schemas = _row_forms(spec, catalogue)
    if not schemas:
        return []
    datasets = [
        (("data", *path), dataset.args, uploaded_ids(dataset))
        for path, dataset in spec.data.sets()
        if dataset.use == "files/jsonl"
    ]
    share = HEAD_BYTES // max(1, sum(len(names) for _, _, names in datasets))
    problems: list[Problem] = []
    for path, args, names in datasets:
        forms = RowForms(schemas)
        offset: Any = args.get("offset") or 0
        limit: Any = args.get("limit")
        for index, name in enumerate(names):
            lines, is_whole = _lines(store, name, share)
            rows = lines[offset:][:limit]
            pointer = pointer_to(*path, "args", "paths", index)
            problems += islice(_wrong_lines(rows, pointer, forms, spec.data.map), MOST_PROBLEMS)
            if not is_whole and (offset or limit is not None):
                break  # The rows that offset and limit select from the next file depend on the rest of this one.
            offset = max(0, offset - len(lines))
            limit = None if limit is None else limit - len(rows)
    return problems


def wrong_columns(conn: Connection, spec: JobSpec, catalogue: Catalogue) -> list[Problem]:
    """Returns the problems of uploaded CSV and Parquet files, whose columns are known from the report of the upload."""
    schemas = _row_forms(spec, catalogue)
    problems: list[Problem] = []
    for path, dataset in spec.data.sets() if schemas else ():
        columns = columns_of(conn, spec.project, dataset) if dataset.use in ("files/csv", "files/parquet") else None
        if columns is None:
            continue
        for component in spec.data.map:
            names: Any = component.args["columns"]
            columns = columns_after(component.use, names, columns)
        if problem := RowForms(schemas).problem_of_columns(sorted(columns)):
            pointer = pointer_to("data", *path, "args", "paths")
            problems.append(Problem(pointer, problem.code, problem.detail, problem.hint))
    return problems


def _row_forms(spec: JobSpec, catalogue: Catalogue) -> Sequence[Schema]:
    """Returns the formats of rows that the library trainer accepts. Returns () if only a node can apply a map."""
    trainer = spec.library_trainer
    description = None if trainer is None else catalogue.get("trainers", trainer.use)
    return description.rows if description is not None and all(map(changes_columns, spec.data.map)) else ()


def _mapped(row: dict[str, Any], maps: Sequence[Component]) -> dict[str, Any]:
    """Returns a row after the maps `rename`, `keep` and `drop`. Columns that the row lacks are ignored."""
    for component in maps:
        columns: Any = component.args["columns"]
        if component.use == "rename":
            row = {columns.get(name, name): value for name, value in row.items()}
        else:
            row = {name: value for name, value in row.items() if (name in columns) == (component.use == "keep")}
    return row


def no_row_to_train_on(conn: Connection, spec: JobSpec) -> list[Problem]:
    """Returns a problem if the split leaves no row to train on. Returns [] if the number of rows is not known."""
    split, train = spec.data.split, spec.data.train
    if split is None or train is None:
        return []
    rows = _row_count(conn, spec.project, train)
    problem = None if rows is None else split.problem(rows)
    return [] if problem is None else [problem]


READS = {
    "files/jsonl": ("jsonl",), "files/csv": ("csv", "tsv"), "files/parquet": ("parquet",), "files/text": ("txt",),
}  # fmt: skip
"""The kinds of files from which each dataset reads as many rows as the report of the upload counts."""


def _row_count(conn: Connection, project: str, dataset: Component) -> int | None:
    """Returns the number of rows of a dataset, or None if the reports of its uploaded files do not say how many."""
    args = dataset.args
    if args.get("delimiter") or args.get("by", "line") != "line":
        return None
    # If the spec names the columns, the first line of a CSV file is a row.
    header = 1 if dataset.use == "files/csv" and args.get("columns") else 0
    total = 0
    for file in uploads_of(conn, project, dataset):
        # The report must have counted every row and found no bad row.
        is_counted = file.rows and not file.bad_rows and file.report and json.loads(file.report)["is_complete"]
        if file.kind not in READS.get(dataset.use, ()) or not is_counted:
            return None
        total += (file.rows or 0) + header
    offset, limit = args.get("offset") or 0, args.get("limit")
    if not isinstance(offset, int) or not isinstance(limit, int | None):
        return None
    return len(range(total)[offset:][:limit]) or None


def _wrong_lines(
    lines: Sequence[tuple[int, bytes]], pointer: str, forms: RowForms, maps: Sequence[Component]
) -> Iterator[Problem]:
    for number, line in lines:
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            yield Problem(pointer, "wrong_row", f"line {number} is not JSON: {str(error)[:120]}")
            continue
        if not isinstance(row, dict):
            yield Problem(pointer, "wrong_row", f"line {number} is not an object, as rows are")
        elif problem := forms.problem(_mapped(row, maps)):
            yield Problem(pointer, problem.code, f"line {number}: {problem.detail}", problem.hint)


def _lines(store: Store, name: str, most_bytes: int) -> tuple[list[tuple[int, bytes]], bool]:
    """Returns the numbered lines at the beginning of an uploaded file that hold a row, and whether these are all."""
    file = open_below(store, str(layout.UPLOADS / name))
    if file is None:
        return [], False
    with file:
        head = b""
        while len(head) <= most_bytes and (piece := file.read(most_bytes + 1)):
            head += piece
    is_whole, lines = len(head) <= most_bytes, head.split(b"\n")
    return [(at, line) for at, line in enumerate(lines if is_whole else lines[:-1], 1) if line.strip()], is_whole
