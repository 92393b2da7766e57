"""Statements about uploads in parts, and the parts that have arrived."""

from __future__ import annotations

from collections.abc import Collection

from sqlalchemy import Connection, delete, func, insert, select, update

from footplate.contract.errors import NotFound
from footplate.contract.ids import FileId, UploadId
from service.store.mapping import columns_of, values_of
from service.store.row_types import UploadPartRow, UploadRow
from service.store.tables import upload_parts, uploads

PENDING, COMPLETED, CANCELLED = "pending", "completed", "cancelled"
_ROWS = select(*columns_of(uploads, UploadRow))
_PARTS = select(*columns_of(upload_parts, UploadPartRow))


def insert_upload(conn: Connection, row: UploadRow) -> None:
    conn.execute(insert(uploads), values_of(row))


def get(conn: Connection, project: str, upload: UploadId, *, hold: bool = False) -> UploadRow:
    """Returns an upload. Raises NotFound, also for another project's. With `hold`, the row is locked."""
    query = _ROWS.where(uploads.c.project == project, uploads.c.id == upload)
    row = conn.execute(query.with_for_update() if hold else query).one_or_none()
    if row is None:
        raise NotFound(f"there is no upload {upload!r} in this project")
    return UploadRow(*row)


def insert_part(conn: Connection, row: UploadPartRow) -> None:
    conn.execute(insert(upload_parts), values_of(row))


def parts_of(conn: Connection, upload: UploadId) -> list[UploadPartRow]:
    return [UploadPartRow(*row) for row in conn.execute(_PARTS.where(upload_parts.c.upload_id == upload))]


def size_of(conn: Connection, upload: UploadId) -> tuple[int, int]:
    """Returns the number of parts that have arrived, and of their bytes."""
    sums = func.count(), func.coalesce(func.sum(upload_parts.c.bytes), 0)
    count, total = conn.execute(select(*sums).where(upload_parts.c.upload_id == upload)).one()
    return count, int(total)


def end(conn: Connection, upload: UploadId, status: str, file: FileId | None = None) -> None:
    """Ends a pending upload. An upload that has ended already stays as it is."""
    is_pending = (uploads.c.id == upload) & (uploads.c.status == PENDING)
    conn.execute(update(uploads).where(is_pending).values(status=status, file_id=file))


def older_than(conn: Connection, moment: int) -> list[UploadId]:
    ids = conn.execute(select(uploads.c.id).where(uploads.c.created_at < moment).limit(1000))
    return [UploadId(row.id) for row in ids]


def forget(conn: Connection, ids: Collection[UploadId]) -> None:
    """Deletes the rows of uploads and of their parts. The caller has removed the files of the parts."""
    conn.execute(delete(upload_parts).where(upload_parts.c.upload_id.in_(ids)))
    conn.execute(delete(uploads).where(uploads.c.id.in_(ids)))
