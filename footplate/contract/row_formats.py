"""Checks dataset rows against the row formats that a library trainer accepts.

The service checks rows of uploaded files at `POST /jobs`, and a node checks every row. Each format is a JSON Schema
with a `title`, such as "prompt and completion", and `required` columns.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from footplate.contract.errors import Problem
from footplate.contract.json_schema import violations

Schema = dict[str, Any]


class RowForms:
    """The formats that the next row may have. After the first valid row, only the format of that row remains."""

    def __init__(self, forms: Sequence[Schema]) -> None:
        self._forms = list(forms)
        self._titles = "; ".join(str(form["title"]) for form in forms)

    def problem(self, row: Mapping[str, Any]) -> Problem | None:
        """Returns None if the row fits a format. Else returns the row's first problem with the most similar format."""
        if not self._forms:
            return None
        problems_by_form = [(form, violations(form, row)) for form in self._forms]
        if fitting_form := next((form for form, problems in problems_by_form if not problems), None):
            self._forms = [fitting_form]
            return None
        form, problems = min(problems_by_form, key=lambda pair: _distance(pair[0], row, pair[1]))
        if _missing(form, row):
            return self._wrong(_no_column(form, row))
        column, _, inner_pointer = problems[0].pointer.removeprefix("/").partition("/")
        return self._wrong(f"column {column!r}{f', at {inner_pointer},' if inner_pointer else ''} {problems[0].detail}")

    def problem_of_columns(self, columns: Iterable[str]) -> Problem | None:
        """Returns None if a format needs only these columns. Else names a missing column of the most similar format."""
        row = dict.fromkeys(columns)
        if not all(_missing(form, row) for form in self._forms):
            return None
        form = min(self._forms, key=lambda form: _distance(form, row, ()))
        return self._wrong(_no_column(form, row))

    def _wrong(self, detail: str) -> Problem:
        return Problem("", "wrong_row", detail, f"a row has {self._titles}")


def _distance(form: Schema, row: Mapping[str, Any], problems: Sequence[Problem]) -> tuple[int, ...]:
    """Returns a sort key that is smallest for the format with the most columns in common with the row."""
    missing_count = len(_missing(form, row))
    return missing_count - len(form["required"]), missing_count, len(problems)


def _missing(form: Schema, row: Mapping[str, Any]) -> list[str]:
    return [column for column in form["required"] if column not in row]


def _no_column(form: Schema, row: Mapping[str, Any]) -> str:
    columns = ", ".join(map(str, row)) or "none"
    return f"there is no column {_missing(form, row)[0]!r}, only: {columns[:200]}"
