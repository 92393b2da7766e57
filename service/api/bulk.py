"""Applies one verb to many jobs. Each job has a transaction and an answer of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Annotated, Literal

from fastapi import APIRouter, Request
from pydantic import Field
from sqlalchemy import Connection

from footplate.contract.crash_points import Moment, reached
from footplate.contract.errors import Conflict, FootplateError, InvalidSpec, NotFound, Problem, Unavailable
from footplate.contract.fields import Group, Many, ShortText, When
from footplate.contract.ids import JobId, is_id
from footplate.contract.lifecycle import TERMINAL, Action, JobState, StopMode
from footplate.contract.resources.jobs import BulkError, BulkItem, BulkOutcome
from service.api.documented import documented_body
from service.api.jobs import remove_folder
from service.api.listing import milliseconds
from service.api.verbs import cancelling, pausing, resuming
from service.deps import Services, StrictRoute, read_model, services_of
from service.jobs.amend import delete
from service.store import job_list
from service.store.job_list import JobFilter
from service.store.times import now_ms

router = APIRouter(route_class=StrictRoute, tags=["jobs"])

MOST = 500
AT_ONCE = 50
"""The most jobs that are changed at the same time, so that other requests can write, too."""
_S = JobState
_FROM = {
    Action.CANCEL: set(JobState) - TERMINAL,
    Action.PAUSE: {_S.QUEUED, _S.STARTING, _S.RUNNING},
    Action.RESUME: {_S.PAUSED, _S.FAILED, _S.CANCELLED, _S.STOPPING},
    Action.DELETE: set(TERMINAL),
}
"""The states in which a job allows each verb. A filter selects only jobs in these states."""


class Where(Group):
    """The same filters as those of GET /jobs. A job must match all of them."""

    state: Annotated[Many[JobState], Field(min_length=1)] | None = None
    tag: ShortText | None = None
    name: ShortText | None = None
    created_after: When | None = None
    """The earliest time of creation."""
    created_before: When | None = None
    """The time before which the jobs were created."""


class Bulk(Group):
    """The verb, and the jobs that it applies to."""

    action: Literal[Action.CANCEL, Action.PAUSE, Action.RESUME, Action.DELETE]
    ids: Annotated[Many[str], Field(min_length=1, max_length=MOST)] | None = None
    where: Where | None = None
    """Filters that select jobs, instead of `ids`. Jobs in a state that the verb cannot change are left out."""
    cursor: Annotated[str, Field(min_length=1, max_length=1000)] | None = None
    """The `next_cursor` of the previous answer, to change the next matching jobs."""
    mode: StopMode = StopMode.CHECKPOINT
    """The mode of a cancel, as in POST /jobs/{job}/cancel. Other actions have no mode."""


@router.post(
    "/jobs/bulk",
    summary="Cancel, pause, resume or delete many jobs",
    **documented_body(
        Bulk, {"action": "cancel", "where": {"state": ["queued", "running"], "tag": "demo"}}, required=True
    ),
)
async def bulk_jobs(request: Request) -> BulkOutcome:
    """Applies the verb to up to 500 jobs, the newest first. Repeating the request is harmless."""
    services = services_of(request)
    bulk = await read_model(request, Bulk)
    if problems := _problems(bulk):
        raise InvalidSpec(problems)
    ids, cursor = await _selected(services, bulk)
    outcomes: list[BulkItem] = []
    for first in range(0, len(ids), AT_ONCE):
        outcomes += await asyncio.gather(*(_apply(services, bulk, job) for job in ids[first : first + AT_ONCE]))
    changed_jobs = [JobId(outcome.job) for outcome in outcomes if outcome.error is None]
    for job in changed_jobs:
        services.changed(job)
    services.audit(f"{bulk.action} of {len(changed_jobs)} jobs of project {services.project}")
    return BulkOutcome(data=tuple(outcomes), next_cursor=cursor)


def _problems(bulk: Bulk) -> list[Problem]:
    problems = []
    if (bulk.ids is None) == (bulk.where is None):
        detail, hint = "exactly one of `ids` and `where` is needed", 'write "ids": […] or "where": {"tag": …}'
        problems.append(Problem("", "which_ones", detail, hint))
    if bulk.where is not None and bulk.where == Where():
        detail = "has no filter, and would select every job"
        problems.append(Problem("/where", "missing", detail, "write at least one filter"))
    if bulk.cursor is not None and bulk.where is None:
        problems.append(Problem("/cursor", "which_ones", "needs `where`, which is missing"))
    if bulk.mode is not StopMode.CHECKPOINT and bulk.action is not Action.CANCEL:
        detail = f"is a field of cancel, and {bulk.action} has no mode"
        problems.append(Problem("/mode", "unknown_field", detail, "leave `mode` out"))
    return problems


async def _selected(services: Services, bulk: Bulk) -> tuple[Sequence[str], str | None]:
    if bulk.where is None:
        return list(dict.fromkeys(bulk.ids or ())), None
    where = bulk.where
    possible = _FROM[bulk.action]
    states = sorted(possible if where.state is None else possible & set(where.state))
    if not states:
        return [], None
    job_filter = JobFilter(
        project=services.project,
        states=states,
        tag=where.tag,
        name=where.name,
        created_after=milliseconds(where.created_after),
        created_before=milliseconds(where.created_before),
    )
    page = await services.db.read(job_list.page, filter=job_filter, cursor=bulk.cursor, limit=MOST)
    return [row.id for row in page.rows], page.next_cursor


async def _apply(services: Services, bulk: Bulk, job: str) -> BulkItem:
    """Applies the verb to one job. Returns what the route for one job would have answered."""
    verbs = {
        Action.CANCEL: cancelling(services, bulk.mode), Action.PAUSE: pausing(services),
        Action.RESUME: resuming(services),
    }  # fmt: skip

    def write(conn: Connection) -> JobState | None:
        state = None
        if bulk.action is Action.DELETE:
            delete(conn, services.project, JobId(job), now_ms())
        else:
            state = verbs[bulk.action](conn, JobId(job)).state
        reached(Moment.BEFORE_VERB_COMMITS)
        return state

    try:
        if not is_id(job, "job"):
            raise NotFound(f"there is no job {job[:80]!r} in this project")
        state = await services.db.write(write)
    except Unavailable:
        raise
    except FootplateError as error:
        more = {"state": error.state, "allowed": error.allowed} if isinstance(error, Conflict) else {}
        why_not = BulkError(status=error.status, code=error.code, detail=error.message, hint=error.hint, **more)
        return BulkItem(job=job, state=why_not.state, error=why_not)
    reached(Moment.AFTER_VERB_COMMITS)
    if bulk.action is Action.DELETE:
        await remove_folder(services, JobId(job))
    return BulkItem(job=job, state=state, error=None)
