"""The route that lists jobs. It uses filters and a keyset, so that any page costs the same."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from sqlalchemy import Connection

from footplate.contract.errors import InvalidSpec, Problem
from footplate.contract.fields import When
from footplate.contract.lifecycle import JobState
from footplate.contract.resources.history import MetricSummary
from footplate.contract.resources.jobs import JobList
from service.api import views
from service.callers import Scope
from service.deps import StrictRoute, job_id, services_of
from service.events.series import summaries
from service.problems import InvalidQuery, comma_list, require_known
from service.store import attempts, job_list
from service.store.job_list import JobFilter, Sort
from service.store.row_types import JobRow

router = APIRouter(route_class=StrictRoute, tags=["jobs"])
_CURSOR = "The next_cursor of the page before."
MOST_STATES = 50
MOST_IDS = 100
MOST_SPEC_CHARACTERS = 1024 * 1024
MOST_SUMMARIES = 1_000
INCLUDABLE = ("spec", "summary")
_INCLUDE = (
    "Further data of each job, separated by commas: `spec`, and `summary` of the metrics. An answer has at most "
    f"{MOST_SPEC_CHARACTERS:,} characters of specs and {MOST_SUMMARIES:,} metrics. Further jobs come without the data."
)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@router.get("/jobs", summary="Jobs, newest first")
async def list_jobs(
    request: Request,
    state: Annotated[str | None, Query(description="One state, or several with commas.")] = None,
    tag: Annotated[str | None, Query(description="Only jobs with this tag.", min_length=1, max_length=128)] = None,
    name: Annotated[str | None, Query(description="Only jobs of this name.", min_length=1, max_length=128)] = None,
    created_after: Annotated[When | None, Query(description="The earliest time of creation.")] = None,
    created_before: Annotated[When | None, Query(description="The time before which the jobs were created.")] = None,
    ids: Annotated[
        str | None,
        Query(description=f"Only these jobs: ids with commas, at most {MOST_IDS}.", min_length=1, max_length=5000),
    ] = None,
    forked_from: Annotated[
        str | None, Query(description="Only jobs that start from a checkpoint of the job with this id.", max_length=100)
    ] = None,
    include: Annotated[str | None, Query(description=_INCLUDE, max_length=100)] = None,
    sort: Annotated[Sort, Query(description="The order. A minus reverses it.")] = "-created",
    cursor: Annotated[str | None, Query(description=_CURSOR, min_length=1, max_length=1000)] = None,
    limit: Annotated[int, Query(description="The most jobs of a page.", ge=1, le=200)] = 50,
) -> JobList:
    services = services_of(request)
    job_filter = JobFilter(
        project=services.project,
        states=read_states(state),
        tag=tag,
        name=name,
        created_after=milliseconds(created_after),
        created_before=milliseconds(created_before),
        ids=None if ids is None else [job_id(text) for text in comma_list(ids, "ids", MOST_IDS)],
        forked_from=None if forked_from is None else job_id(forked_from),
    )
    further_data = [] if include is None else comma_list(include, "include", len(INCLUDABLE))
    require_known("include", "unknown_choice", further_data, INCLUDABLE)

    def read(conn: Connection) -> JobList:
        page = job_list.page(conn, job_filter, sort=sort, cursor=cursor, limit=limit)
        nodes = attempts.nodes_of(conn, [row.id for row in page.rows if row.state.holds_slots])
        data = tuple(views.job(row, nodes.get(row.id, ())) for row in page.rows)
        return JobList(
            data=data,
            next_cursor=page.next_cursor,
            total_estimate=page.total_estimate,
            project=services.project,
            scopes=tuple(scope for scope in Scope if services.caller.may(scope)),
            specs=_specs(page.rows) if "spec" in further_data else None,
            summaries=_summaries(conn, page.rows) if "summary" in further_data else None,
        )

    try:
        return await services.db.read(read)
    except InvalidSpec as error:
        raise InvalidQuery([Problem("/query" + p.pointer, p.code, p.detail, p.hint) for p in error.problems]) from error


def read_states(text: str | None) -> list[JobState]:
    # An empty text selects no job. If it selected all, a script with an unset variable would cancel every job it lists.
    names = [] if text is None else comma_list(text, "state", MOST_STATES)
    require_known("state", "unknown_state", names, list(JobState))
    return [JobState(name) for name in names]


def _specs(rows: Sequence[JobRow]) -> dict[str, Any]:
    """Returns the specs of the first jobs. A limit of characters applies, because long answers delay other requests."""
    room, specs = MOST_SPEC_CHARACTERS, dict[str, Any]()
    for row in rows:
        room -= len(row.spec)
        if room < 0 and specs:
            break
        specs[row.id] = json.loads(row.spec)
    return specs


def _summaries(conn: Connection, rows: Sequence[JobRow]) -> dict[str, tuple[MetricSummary, ...]]:
    room, by_job = MOST_SUMMARIES, dict[str, tuple[MetricSummary, ...]]()
    for row in rows:
        metrics = summaries(conn, row.id)
        room -= len(metrics)
        if room < 0 and by_job:
            break
        by_job[row.id] = tuple(metrics)
    return by_job


def milliseconds(moment: datetime | None) -> int | None:
    # Integers, because a float would sometimes be wrong by a millisecond.
    return None if moment is None else (moment - _EPOCH) // (datetime.resolution * 1000)
