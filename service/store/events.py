from __future__ import annotations
from collections.abc import Collection
from sqlalchemy import Connection
from contract.ids import JobId
from service.store.rows import EventRow


def after(conn: Connection, job_id: JobId, after_no: int, limit: int, kinds: Collection[str] | None = None) -> list[EventRow]:
    raise NotImplementedError
