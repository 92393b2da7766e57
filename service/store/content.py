"""Statements about bundles and uploaded files, which are identified by the hash of their content.

Equal bytes are one row in each project that has them, and one file for all. The file is put into the artifact store
before its first row is written, and is deleted after the last one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar

from sqlalchemy import Column, Connection, Table, delete, func, select, tuple_, update

from footplate.contract.errors import NotFound
from service.store.mapping import columns_of, insert_if_new, values_of
from service.store.row_types import BundleRow, FileRow
from service.store.tables import bundles, files

Row = TypeVar("Row")


class ContentTable(Generic[Row]):
    """The statements for the table of bundles or of uploaded files.

    `key` is the name of the column that identifies a row within a project.
    """

    def __init__(self, table: Table, row_class: type[Row], key: str, what: str, hint: str) -> None:
        self._table, self.what, self._hint = table, what, hint
        self._row: Callable[..., Row] = row_class
        self._key: Column[Any] = table.c[key]
        self._rows = select(*columns_of(table, row_class))
        self._order: tuple[Column[Any], ...] = (table.c.created_at, self._key)

    def keep(self, conn: Connection, row: Row, put: Callable[[], None]) -> tuple[Row, bool]:
        """Stores a row and returns it, with True if it is new in this project.

        `put` writes the row's file into the artifact store, unless the file exists. It may be called again.
        """
        values = values_of(row)
        is_new = insert_if_new(conn, self._table, row)
        put()
        return self.get(conn, values["project"], values[self._key.name]), is_new

    def get(self, conn: Connection, project: str, key: str, *, hold: bool = False) -> Row:
        """Returns a row, or raises NotFound. With `hold`, no other transaction can delete it before this one ends."""
        query = self._rows.where(self._table.c.project == project, self._key == key)
        match = conn.execute(query.with_for_update(read=True) if hold else query).one_or_none()
        if match is None:
            raise NotFound(f"there is no {self.what} {key}", hint=self._hint)
        return self._row(*match)

    def page(
        self,
        conn: Connection,
        project: str,
        limit: int,
        after: tuple[int, str] | None = None,
        *,
        oldest_first: bool = False,
    ) -> list[Row]:
        """Returns a page of rows, newest first or oldest first. `after` is the last row of the previous page."""
        query = self._rows.where(self._table.c.project == project)
        if after is not None:
            place = tuple_(*self._order)
            query = query.where(place > tuple_(*after) if oldest_first else place < tuple_(*after))
        order = [column.asc() if oldest_first else column.desc() for column in self._order]
        return [self._row(*row) for row in conn.execute(query.order_by(*order).limit(limit))]

    def remove(self, conn: Connection, project: str, key: str) -> bool:
        """Deletes a row. Returns True if no project needs the file any more. Raises NotFound."""
        if conn.execute(delete(self._table).where(self._table.c.project == project, self._key == key)).rowcount == 0:
            self.get(conn, project, key)
        return conn.execute(select(func.count()).where(self._key == key)).scalar_one() == 0


BUNDLES = ContentTable(bundles, BundleRow, "sha256", "bundle", "POST /bundles uploads it as a zip")
FILES = ContentTable(files, FileRow, "id", "file", "POST /files uploads it, and GET /files lists the existing ones")


def set_report(conn: Connection, row: FileRow) -> None:
    """Replaces the stored report of a file's rows by the one in `row`."""
    values = {name: value for name, value in values_of(row).items() if name in ("rows", "bad_rows", "report")}
    conn.execute(update(files).where(files.c.project == row.project, files.c.id == row.id).values(values))
