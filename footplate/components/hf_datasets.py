"""Makes datasets of the library `datasets` from a job's rows, which the trainers of TRL and others require."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from typing import Any

from footplate.components.rows import is_stream, where
from footplate.contract.errors import DatasetError
from footplate.contract.row_formats import RowForms, Schema

ROWS_AT_ONCE = 1000
JSON = "json"
"""The type of a column with objects."""


def require_forms(rows: Any, forms: Sequence[Schema], trainer: str) -> None:
    """Checks every row. Raises DatasetError for a stream, and for the first row that fits none of the schemas."""
    if is_stream(rows):
        raise DatasetError(f"{trainer} reads rows by number, and this dataset is a stream", hint="leave streaming out")
    row_forms = RowForms(forms)
    for index, row in enumerate(_each(rows)):
        if problem := row_forms.problem(row):
            raise DatasetError(f"{where(rows, index)}: {problem.detail}", hint=problem.hint)


def as_dataset(rows: Any) -> Any:
    """Returns the rows as a dataset of the library `datasets`, which stores them in a temporary file.

    Rows that lack a column of the dataset get None in that column.
    """
    from datasets import Dataset, disable_progress_bars

    disable_progress_bars()
    # The library itself would take the types from the first rows, and fail at a later row that has one key more.
    features = _features(rows)
    # A new folder, because `datasets` would reuse a file that an earlier job has written there.
    folder = tempfile.mkdtemp(prefix="rows-")
    return Dataset.from_generator(
        _filled, features=features, gen_kwargs={"rows": rows, "names": tuple(features)}, cache_dir=folder
    )


def _features(rows: Any) -> Any:
    """Returns the types of the columns in all rows. Objects are stored as JSON, because their keys may differ."""
    from datasets import Features, Json
    from pyarrow import ArrowException, array, field, schema, unify_schemas

    types: dict[str, Any] = {}
    for start in range(0, len(rows), ROWS_AT_ONCE):
        chunk = [rows[index] for index in range(start, min(start + ROWS_AT_ONCE, len(rows)))]
        for name in dict.fromkeys(name for row in chunk for name in row):
            values = [row.get(name) for row in chunk]
            if types.get(name) is JSON or any(map(_has_objects, values)):
                types[name] = JSON
                continue
            try:
                schemas = [
                    schema([field(name, kind)]) for kind in (types.get(name), array(values).type) if kind is not None
                ]
                types[name] = unify_schemas(schemas, promote_options="permissive").field(name).type
            except ArrowException as error:
                raise DatasetError(f"column {name!r} has values of different types: {error}") from error
    plain = Features.from_arrow_schema(schema([field(name, kind) for name, kind in types.items() if kind is not JSON]))
    return Features({name: Json() if kind is JSON else plain[name] for name, kind in types.items()})


def _has_objects(value: Any) -> bool:
    return isinstance(value, dict) or (isinstance(value, list) and any(map(_has_objects, value)))


def _filled(rows: Any, names: Sequence[str]) -> Iterator[Any]:
    """Yields the rows with all columns. A row that lacks a column gets None in it."""
    return ({name: row.get(name) for name in names} for row in _each(rows))


def _each(rows: Any) -> Iterator[Any]:
    return (rows[index] for index in range(len(rows)))
