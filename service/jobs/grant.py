"""Answers claims with a grant or a denial.

A grant holds all data that a supervisor needs for its attempt. If this supervisor repeats its claim, it gets the grant
again.
"""

from __future__ import annotations

import json

from sqlalchemy import Connection

from footplate.contract.ids import ClaimId
from footplate.contract.lifecycle import JobState, Reason
from footplate.contract.messages import Claim, Denial, Grant
from footplate.contract.tracing import of_attempt
from service.jobs import multi_node, start_checkpoint
from service.settings import ServiceSettings
from service.store import attempts, checkpoints, commands, jobs, nodes, traces
from service.store.rows import JobRow, SourceRow


def grant(conn: Connection, claim: Claim, now: int, settings: ServiceSettings) -> Grant | Denial:
    """Returns a grant if one guarded UPDATE could store the claim, else a denial.

    A denial is final, because the attempt then belongs to another claim or has ended.
    """
    node = nodes.find(conn, claim.node)
    if node is not None and node.refused is not None:
        return Denial(claim=claim.claim, reason=f"this node gets no work: {node.refused}")
    # Every transaction locks a job before its sources, because another order could cause deadlocks.
    job = jobs.lock(conn, claim.job)
    source = attempts.claim(
        conn, claim.job, claim.attempt, claim.fence, claim.node, claim.boot, ClaimId(claim.claim), now, claim.rendezvous
    )
    if source is None or job is None:
        return Denial(claim=claim.claim, reason=_why_not(conn, claim, job))
    if job.state is JobState.STARTING and job.reason is not Reason.CLAIMED:
        jobs.record(conn, job.id, reason=Reason.CLAIMED, message=None)
    if source.claimed_at == now:
        attempts.change(conn, job.id, job.attempt, claimed_at=now)
    return _granted(conn, claim, job, source, settings)


def _granted(conn: Connection, claim: Claim, job: JobRow, source: SourceRow, settings: ServiceSettings) -> Grant:
    # This attempt's own checkpoints are left out, because all of its nodes must continue from the same one.
    earlier = [row for row in checkpoints.offers(conn, job.id) if row.attempt < job.attempt]
    offers = [start_checkpoint.offered(row, was_corrupt=row.status == checkpoints.CORRUPT) for row in earlier]
    sources = attempts.sources_of(conn, job.id, job.attempt)
    left_ms = None if job.time_limit_ms is None else max(0, job.time_limit_ms - job.running_ms)
    return Grant(
        job=job.id,
        attempt=job.attempt,
        fence=job.fence,
        claim=claim.claim,
        source=source.source,
        nodes=len(sources),
        rendezvous=multi_node.rendezvous(sources),
        spec=json.loads(job.spec),
        gpus=json.loads(source.gpus),
        checkpoints=offers or start_checkpoint.offer(conn, job),
        commands=commands.of_job(conn, job.id),
        watermark=source.watermark,
        beat_seconds=settings.beat_seconds,
        time_left_seconds=None if left_ms is None else left_ms / 1000,
        traceparent=of_attempt(traces.of_job(conn, job.id), job.id, job.attempt),
        project=job.project,
    )


def _why_not(conn: Connection, claim: Claim, job: JobRow | None) -> str:
    if job is None:
        return "there is no such job"
    if (job.attempt, job.fence) != (claim.attempt, claim.fence):
        return f"attempt {claim.attempt} is over: the job is at attempt {job.attempt}"
    if not job.state.holds_slots:
        return f"the job is {job.state}"
    own_sources = [source for source in attempts.sources_of(conn, job.id, job.attempt) if source.node == claim.node]
    if not own_sources:
        return "the attempt was placed on another node"
    return (
        "another supervisor has claimed the attempt"
        if own_sources[0].claim
        else f"the job is {job.state}, not starting"
    )
