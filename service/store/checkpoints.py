from __future__ import annotations
from sqlalchemy import Connection
from contract.ids import JobId
from service.store.rows import CheckpointRow


def of_job(conn: Connection, job_id: JobId) -> list[CheckpointRow]:
    """Newest first, whatever their status."""
    raise NotImplementedError
