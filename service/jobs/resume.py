from __future__ import annotations
from dataclasses import dataclass
from typing import Any
from sqlalchemy import Connection
from contract.ids import JobId
from service.store.rows import JobRow


@dataclass(frozen=True, slots=True)
class ResumeChanges:
    """What a resume may change. None leaves it."""

    priority: int | None = None
    pool: str | None = None
    resources: dict[str, Any] | None = None
    """Fields of spec.resources to replace; time_limit and gpus_per_node may be None in it."""
    max_steps: int | None = None
    num_train_epochs: float | None = None
    time_limit: float | str | None = None


def resume(conn: Connection, project: str, job_id: JobId, changes: ResumeChanges, now: int) -> JobRow:
    raise NotImplementedError
