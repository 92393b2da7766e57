from __future__ import annotations
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal
from sqlalchemy import Connection
from contract.ids import JobId
from contract.lifecycle import JobState
from service.store.rows import JobPage, JobRow

Sort = Literal["-created", "created", "-priority", "priority", "-name", "name"]


@dataclass(frozen=True, slots=True)
class JobFilter:
    project: str
    states: Sequence[JobState] = ()
    tag: str | None = None
    name: str | None = None
    created_after: int | None = None
    """Milliseconds, inclusive."""
    created_before: int | None = None
    """Milliseconds, exclusive."""


def find(conn: Connection, project: str, job_id: JobId) -> JobRow | None:
    raise NotImplementedError


def get(conn: Connection, project: str, job_id: JobId) -> JobRow:
    """Raises contract.errors.NotFound."""
    raise NotImplementedError


def page(conn: Connection, filter: JobFilter, sort: Sort = "-created", cursor: str | None = None, limit: int = 50) -> JobPage:
    """Raises InvalidSpec (pointer /cursor) for a cursor that is not one of ours."""
    raise NotImplementedError


def state_counts(conn: Connection, project: str | None = None) -> dict[str, int]:
    raise NotImplementedError
