"""Switches of the protections around messages."""

from __future__ import annotations

from typing import Any

from tests.faults.off import switch


@switch("one grant for each attempt", module="service.jobs.inbox")
def grant_everyone(grant: Any) -> None:
    """Grants every claim, as if the row had no claim yet."""
    from sqlalchemy import update

    from service.store.tables import sources

    guarded = grant.attempts.claim

    def unguarded(conn: Any, job_id: Any, attempt: int, *args: Any) -> Any:
        forget = update(sources).where(sources.c.job_id == job_id, sources.c.attempt == attempt).values(claim=None)
        conn.execute(forget)
        return guarded(conn, job_id, attempt, *args)

    grant.attempts.claim = unguarded


@switch("a claim is checked for its fence and node", module="service.jobs.inbox")
def ignore_fence_and_node(grant: Any) -> None:
    """Grants every claim of the job, whichever fence, attempt or node it names."""
    guarded = grant.attempts.claim

    def unfenced(conn: Any, job_id: Any, *args: Any) -> Any:
        *_, boot, claim, now, rendezvous = args
        if (job := grant.jobs.peek(conn, job_id)) is None:
            return None
        part = grant.attempts.sources_of(conn, job_id, job.attempt)[0]
        return guarded(conn, job_id, job.attempt, job.fence, part.node, boot, claim, now, rendezvous)

    grant.attempts.claim = unfenced
