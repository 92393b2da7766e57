from __future__ import annotations
from sqlalchemy import Connection
from contract.ids import JobId
from service.store.rows import AttemptRow, SourceRow


def of_job(conn: Connection, job_id: JobId) -> list[AttemptRow]:
    raise NotImplementedError


def sources_of_job(conn: Connection, job_id: JobId) -> list[SourceRow]:
    raise NotImplementedError


def nodes_of(conn: Connection, job_ids: list[JobId]) -> dict[JobId, list[str]]:
    """Names of the nodes that hold each job's open attempt."""
    raise NotImplementedError
