"""Formats the report of an uploaded file, for the command and for notebooks."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from footplate.contract.resources.artifacts import ColumnReport, RowReport

COLUMN_HEADS = ("COLUMN", "TYPE", "MISSING", "LONGEST", "TOKENS")


def column_cells(column: ColumnReport) -> tuple[str, str, str, str, str]:
    """Returns the table cells of one column. Each type after the most frequent one has the number of its first row."""
    types = [count.type for count in column.types[:1]]
    types += [f"{count.rows:,} {count.type} (first: row {count.first})" for count in column.types[1:]]
    missing_text = f"{column.missing:,} (first: row {column.first_missing})" if column.missing else ""
    longest_text = "" if column.longest is None else str(column.longest)
    tokens_text = ""
    if (lengths := column.tokens) is not None:
        tokens_text = f"median {lengths.median:,}, 95 % up to {lengths.p95:,}, most {lengths.most:,}"
    return column.name, ", ".join(types), missing_text, longest_text, tokens_text


def headline(report: RowReport) -> str:
    """Returns the number of rows and of bad rows as a sentence."""
    rows = f"{report.rows:,} {'row' if report.rows == 1 else 'rows'}"
    bad_text = f"{report.bad_rows:,} bad" if report.bad_rows else "none bad"
    return f"{rows}, {bad_text}" + ("" if report.is_complete else ", not all checked")


def problems(report: RowReport) -> list[str]:
    """Returns a line for each of the first bad rows, and notes about checks that were left out."""
    problem_lines = [f"row {row.number}: {row.problem}" for row in report.first_bad]
    if further_count := report.bad_rows - len(report.first_bad):
        problem_lines.append(f"{further_count:,} more bad rows")
    return [*problem_lines, *report.notes]
