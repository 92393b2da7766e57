from __future__ import annotations
from sqlalchemy import Connection
from contract.ids import JobId


def delete(conn: Connection, project: str, job_id: JobId, now: int) -> list[str]:
    """The artifact folders to remove, relative to the store."""
    raise NotImplementedError
