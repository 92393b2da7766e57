"""The route that lists jobs. It uses filters and a keyset, so that any page costs the same."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated

from fastapi import APIRouter, Query, Request
from sqlalchemy import Connection

from footplate.contract.errors import InvalidSpec, Problem, did_you_mean
from footplate.contract.fields import When
from footplate.contract.lifecycle import JobState
from footplate.contract.resources.jobs import JobList
from service.api import views
from service.deps import StrictRoute, services_of
from service.problems import InvalidQuery, comma_list
from service.store import attempts, job_list
from service.store.job_list import JobFilter, Sort

router = APIRouter(route_class=StrictRoute, tags=["jobs"])
_CURSOR = "The next_cursor of the page before."
MOST_STATES = 50
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@router.get("/jobs", operation_id="list_jobs", summary="Jobs, newest first")
async def list_jobs(
    request: Request,
    state: Annotated[str | None, Query(description="One state, or several with commas.")] = None,
    tag: Annotated[str | None, Query(min_length=1, max_length=128)] = None,
    name: Annotated[str | None, Query(min_length=1, max_length=128)] = None,
    created_after: Annotated[When | None, Query(description="Inclusive.")] = None,
    created_before: Annotated[When | None, Query(description="Exclusive.")] = None,
    sort: Annotated[Sort, Query()] = "-created",
    cursor: Annotated[str | None, Query(description=_CURSOR, min_length=1, max_length=1000)] = None,
    limit: Annotated[int, Query(ge=1, le=200)] = 50,
) -> JobList:
    services = services_of(request)
    wanted = JobFilter(
        project=services.project,
        states=read_states(state),
        tag=tag,
        name=name,
        created_after=milliseconds(created_after),
        created_before=milliseconds(created_before),
    )

    def read(conn: Connection) -> JobList:
        page = job_list.page(conn, wanted, sort=sort, cursor=cursor, limit=limit)
        nodes = attempts.nodes_of(conn, [row.id for row in page.rows if row.state.holds_slots])
        data = tuple(views.job(row, nodes.get(row.id, ())) for row in page.rows)
        return JobList(data=data, next_cursor=page.next_cursor, total_estimate=page.total_estimate)

    try:
        return await services.db.read(read)
    except InvalidSpec as error:
        raise InvalidQuery([Problem("/query" + p.pointer, p.code, p.detail, p.hint) for p in error.problems]) from error


def read_states(text: str | None) -> list[JobState]:
    # An empty text selects no job. If it selected all, a script with an unset variable would cancel every job it lists.
    names = [] if text is None else comma_list(text, "state", MOST_STATES)
    states = [state.value for state in JobState]
    wrong = [
        Problem(
            "/query/state",
            "unknown_state",
            f"no state {name!r}; there is: {', '.join(states)}",
            did_you_mean(name, states),
        )
        for name in names
        if name not in states
    ]
    if wrong:
        raise InvalidQuery(wrong)
    return [JobState(name) for name in names]


def milliseconds(moment: datetime | None) -> int | None:
    # Integers, because a float would sometimes be wrong by a millisecond.
    return None if moment is None else (moment - _EPOCH) // (datetime.resolution * 1000)
