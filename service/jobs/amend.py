from __future__ import annotations
from typing import Any, TypedDict
from sqlalchemy import Connection
from contract.ids import JobId
from service.store.rows import JobRow


class Amendments(TypedDict, total=False):
    """What a PATCH may change; a key that is not there leaves its column."""

    name: str | None
    tags: list[str]
    metadata: dict[str, Any]
    priority: int


def amend(conn: Connection, project: str, job_id: JobId, changes: Amendments, now: int, *, if_version: int | None = None) -> JobRow:
    raise NotImplementedError
