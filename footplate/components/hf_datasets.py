"""Makes datasets of the library `datasets` from a job's rows, which the trainers of TRL and others require."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from typing import Any

from footplate.components.rows import is_stream, where
from footplate.contract.errors import DatasetError
from footplate.contract.rows import RowForms, Schema


def require_forms(rows: Any, forms: Sequence[Schema], trainer: str) -> None:
    """Checks every row. Raises DatasetError for a stream, and for the first row that fits none of the schemas."""
    if is_stream(rows):
        raise DatasetError(f"{trainer} reads rows by number, and this dataset is a stream", hint="leave streaming out")
    row_forms = RowForms(forms)
    for index, row in enumerate(_each(rows)):
        if problem := row_forms.problem(row):
            raise DatasetError(f"{where(rows, index)}: {problem.detail}", hint=problem.hint)


def as_dataset(rows: Any) -> Any:
    """Returns the rows as a dataset of the library `datasets`, which stores them in a temporary file."""
    from datasets import Dataset, disable_progress_bars

    disable_progress_bars()
    # A new folder, because `datasets` would reuse a file that an earlier job has written there.
    return Dataset.from_generator(_each, gen_kwargs={"rows": rows}, cache_dir=tempfile.mkdtemp(prefix="rows-"))


def _each(rows: Any) -> Iterator[Any]:
    return (rows[index] for index in range(len(rows)))
