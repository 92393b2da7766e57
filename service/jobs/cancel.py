from __future__ import annotations
from sqlalchemy import Connection
from contract.ids import JobId
from contract.lifecycle import StopMode
from service.store.rows import JobRow


def cancel(conn: Connection, project: str, job_id: JobId, mode: StopMode, now: int, *, stop_seconds: float = 60.0) -> JobRow:
    raise NotImplementedError
