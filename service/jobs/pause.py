from __future__ import annotations
from sqlalchemy import Connection
from contract.ids import JobId
from service.store.rows import JobRow


def pause(conn: Connection, project: str, job_id: JobId, now: int, *, stop_seconds: float = 60.0) -> JobRow:
    raise NotImplementedError
