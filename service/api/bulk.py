"""One verb for many jobs. Each is asked by itself, in a transaction of its own, and has its own answer."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Annotated

from fastapi import APIRouter, Request
from pydantic import Field
from sqlalchemy import Connection

from footplate.contract.crash_points import Moment, reached
from footplate.contract.errors import Conflict, FootplateError, InvalidSpec, NotFound, Problem, Unavailable
from footplate.contract.fields import Group, Many, Text, When
from footplate.contract.ids import JobId, is_id
from footplate.contract.lifecycle import TERMINAL, Action, JobState, StopMode
from footplate.contract.resources.jobs import BulkError, BulkItem, BulkOutcome
from service.api.documented import takes
from service.api.jobs import remove_folders
from service.api.listing import milliseconds
from service.deps import Services, StrictRoute, read_model, services_of
from service.jobs.cancel import cancel
from service.jobs.delete import delete
from service.jobs.pause import pause
from service.jobs.resume import NO_CHANGES, resume
from service.store import job_list, jobs
from service.store.job_list import JobFilter
from service.store.times import now_ms

router = APIRouter(route_class=StrictRoute, tags=["jobs"])
audit = logging.getLogger("footplate.audit")

MOST = 500
AT_ONCE = 50
"""So many at a time: others want to write, too."""
_S = JobState
_FROM = {
    Action.CANCEL: set(JobState) - TERMINAL,
    Action.PAUSE: {_S.QUEUED, _S.STARTING, _S.RUNNING},
    Action.RESUME: {_S.PAUSED, _S.FAILED, _S.CANCELLED, _S.STOPPING},
    Action.DELETE: set(TERMINAL),
}
"""Of jobs that are looked for, those that the verb could change."""


class Where(Group):
    """As the list's filters; together they narrow."""

    state: Annotated[Many[JobState], Field(min_length=1)] | None = None
    tag: Text | None = None
    name: Text | None = None
    created_after: When | None = None
    """Inclusive."""
    created_before: When | None = None
    """Exclusive."""


class Bulk(Group):
    """Which verb, for which jobs."""

    action: Action
    """cancel, pause, resume or delete."""
    ids: Annotated[Many[str], Field(min_length=1, max_length=MOST)] | None = None
    where: Where | None = None
    """Instead of ids: of all jobs that match, those that the verb can change."""
    cursor: Annotated[str, Field(min_length=1, max_length=1000)] | None = None
    """next_cursor of the answer before, for the further jobs that match."""
    mode: StopMode = StopMode.CHECKPOINT
    """How hard a cancel pulls."""


@router.post(
    "/jobs/bulk",
    operation_id="bulk_jobs",
    summary="Cancel, pause, resume or delete many jobs",
    **takes(Bulk, required=True),
)
async def bulk_jobs(request: Request) -> BulkOutcome:
    """Asked again it changes nothing that holds already. At most 500 jobs an answer, the newest first."""
    services = services_of(request)
    given = await read_model(request, Bulk)
    if problems := _problems(given):
        raise InvalidSpec(problems)
    ids, cursor = await _meant(services, given)
    outcomes: list[BulkItem] = []
    for at in range(0, len(ids), AT_ONCE):
        outcomes += await asyncio.gather(*(_one(services, given, job) for job in ids[at : at + AT_ONCE]))
    done = [JobId(one.job) for one in outcomes if one.error is None]
    for job in done:
        services.changed(job)
    audit.info(
        "%s of %d jobs of project %s, asked by %s", given.action, len(done), services.project, services.caller.by
    )
    return BulkOutcome(data=tuple(outcomes), next_cursor=cursor)


def _problems(given: Bulk) -> list[Problem]:
    found = []
    if given.action not in _FROM:
        known = ", ".join(_FROM)
        found.append(
            Problem("/action", "unknown_choice", f"{given.action} is asked of one job at a time", f"here: {known}")
        )
    if (given.ids is None) == (given.where is None):
        found.append(
            Problem(
                "",
                "which_ones",
                "says which jobs by ids or by where, one of the two",
                'write "ids": […] or "where": {"tag": …}',
            )
        )
    if given.where is not None and given.where == Where():
        found.append(Problem("/where", "missing", "names no filter, and would mean every job", "write at least one"))
    if given.cursor is not None and given.where is None:
        found.append(Problem("/cursor", "which_ones", "goes on with a where, and there is none"))
    return found


async def _meant(services: Services, given: Bulk) -> tuple[Sequence[str], str | None]:
    if given.where is None:
        return list(dict.fromkeys(given.ids or ())), None
    where = given.where
    can = _FROM[given.action]
    states = sorted(can if where.state is None else can & set(where.state))
    if not states:
        return [], None
    wanted = JobFilter(
        project=services.project,
        states=states,
        tag=where.tag,
        name=where.name,
        created_after=milliseconds(where.created_after),
        created_before=milliseconds(where.created_before),
    )
    page = await services.db.read(partial(job_list.page, filter=wanted, cursor=given.cursor, limit=MOST))
    return [row.id for row in page.rows], page.next_cursor


async def _one(services: Services, given: Bulk, job: str) -> BulkItem:
    """What this one would have answered, had it been asked alone."""
    try:
        if not is_id(job, "job"):
            raise NotFound(f"no job {job[:80]!r} here")
        state, folders = await services.db.write(_verb(services, given, JobId(job)))
    except Unavailable:
        raise
    except FootplateError as error:
        more = {"state": error.state, "allowed": error.allowed} if isinstance(error, Conflict) else {}
        why_not = BulkError(status=error.status, code=error.code, detail=error.message, hint=error.hint, **more)
        return BulkItem(job=job, state=why_not.state, error=why_not)
    reached(Moment.AFTER_VERB_COMMITS)
    if folders:
        await asyncio.to_thread(remove_folders, services.settings.store, folders)
    return BulkItem(job=job, state=state, error=None)


def _verb(services: Services, given: Bulk, job: JobId) -> Callable[[Connection], tuple[JobState | None, list[str]]]:
    project, by, seconds = services.project, services.caller.by, services.settings.stop_seconds

    def write(conn: Connection) -> tuple[JobState | None, list[str]]:
        now = now_ms()
        if given.action is Action.DELETE:
            folders = delete(conn, project, job, now)
            reached(Moment.BEFORE_VERB_COMMITS)
            return None, folders
        if given.action is Action.CANCEL:
            cancel(conn, project, job, given.mode, now, stop_seconds=seconds, by=by)
        elif given.action is Action.PAUSE:
            pause(conn, project, job, now, stop_seconds=seconds, by=by)
        else:
            resume(conn, project, job, NO_CHANGES, now, by=by)
        reached(Moment.BEFORE_VERB_COMMITS)
        return jobs.get(conn, project, job).state, []

    return write
