"""Switches of the protections around messages."""

from __future__ import annotations

from types import ModuleType
from typing import Any

from tests.faults.off import switch


@switch("one grant for each attempt", module="service.jobs.grant")
def grant_everyone(grant: ModuleType) -> None:
    """The guarded UPDATE gives way to everyone who asks: as if the row had no claim yet."""
    from sqlalchemy import update

    from service.store.tables import sources

    guarded = grant.attempts.claim

    def unguarded(conn: Any, job_id: Any, attempt: int, *asked: Any) -> Any:
        forget = update(sources).where(sources.c.job_id == job_id, sources.c.attempt == attempt).values(claim=None)
        conn.execute(forget)
        return guarded(conn, job_id, attempt, *asked)

    grant.attempts.claim = unguarded
