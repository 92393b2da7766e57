"""Formats texts for the Markdown pages that are made from the code."""

from __future__ import annotations


def one_line(text: str | None) -> str:
    return " ".join((text or "").split())


def table_cell(text: str | None) -> str:
    """Returns the text on one line, in which no character ends the cell of a table."""
    return one_line(text).replace("|", "\\|")
