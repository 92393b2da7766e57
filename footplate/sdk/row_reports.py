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
    missing = f"{column.missing:,} (first: row {column.first_missing})" if column.missing else ""
    longest = "" if column.longest is None else str(column.longest)
    tokens = ""
    if (lengths := column.tokens) is not None:
        tokens = f"median {lengths.median:,}, 95 % up to {lengths.p95:,}, most {lengths.most:,}"
    return column.name, ", ".join(types), missing, longest, tokens


def headline(report: RowReport) -> str:
    """Returns the number of rows and of bad rows as a sentence."""
    rows = f"{report.rows:,} {'row' if report.rows == 1 else 'rows'}"
    bad = f"{report.bad_rows:,} bad" if report.bad_rows else "none bad"
    return f"{rows}, {bad}" + ("" if report.is_complete else ", not all checked")


def problems(report: RowReport) -> list[str]:
    """Returns a line for each of the first bad rows, and notes about checks that were left out."""
    bad = [f"row {row.number}: {row.problem}" for row in report.first_bad]
    if more := report.bad_rows - len(report.first_bad):
        bad.append(f"{more:,} more bad rows")
    return [*bad, *report.notes]
