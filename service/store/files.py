"""Statements about uploaded files, as a shelf of content."""

from __future__ import annotations

from sqlalchemy import Connection, update

from service.store.content import Shelf
from service.store.mapping import values_of
from service.store.rows import FileRow
from service.store.tables import files

SHELF = Shelf(files, FileRow, "id", "file", "POST /files takes it, and GET /files lists those that there are")


def set_report(conn: Connection, row: FileRow) -> None:
    """Stores the row's report in place of an older one of the same file."""
    values = {name: value for name, value in values_of(row).items() if name in ("rows", "bad_rows", "report")}
    conn.execute(update(files).where(files.c.project == row.project, files.c.id == row.id).values(values))
