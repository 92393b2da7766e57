"""Routes for a job's history: events, metrics, printed lines, attempts, and the spec."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Annotated, Literal

from fastapi import APIRouter, Query, Request
from sqlalchemy import Connection
from starlette.datastructures import URL
from starlette.responses import Response

from footplate.contract.events import METRIC_KINDS, Kind
from footplate.contract.ids import JobId
from footplate.contract.resources.history import AttemptList, EventList, LineList, MetricList
from service.api import views
from service.api.documented import media_type_response
from service.api.formats import TEXT, VARIES, clean, wants
from service.deps import JobPath, Services, StrictRoute, job_id, services_of
from service.problems import comma_list, require_known
from service.store import attempts, events, jobs, log_lines, nodes
from service.store.row_types import EventRow

router = APIRouter(route_class=StrictRoute, tags=["history"])

MAX_LIMIT = 10_000
MOST_KINDS = 50
After = Annotated[int, Query(ge=0, le=2**31 - 1, description="Only events with a higher `no`.")]
Limit = Annotated[int, Query(description="The most entries of a page.", ge=1, le=MAX_LIMIT)]
_KIND = f"({'|'.join(Kind)})"
Kinds = Annotated[
    str | None,
    # The pattern is only shown in openapi.json. `read_kinds` checks the kinds, so that the error names the unknown one.
    Query(
        description="Only events of these kinds, separated by commas.",
        json_schema_extra={"pattern": f"^,*{_KIND}(,+{_KIND})*,*$"},
    ),
]


@router.get(
    "/jobs/{job}/events",
    summary="The job's events",
    responses={200: {"model": EventList, "description": "EventList"}},
)
async def list_events(
    request: Request,
    job: JobPath,
    after: After = 0,
    kinds: Kinds = None,
    limit: Limit = 1000,
) -> Response:
    services = services_of(request)
    return await _page(services, job_id(job), after, limit, read_kinds(kinds), EventRow.as_json)


@router.get(
    "/jobs/{job}/metrics",
    summary="Logs and evals as flat objects; poll with `after`",
    responses={200: {"model": MetricList, "description": "MetricList"}},
)
async def list_metrics(request: Request, job: JobPath, after: After = 0, limit: Limit = 1000) -> Response:
    return await _page(services_of(request), job_id(job), after, limit, METRIC_KINDS, views.flat)


async def _page(
    services: Services,
    job: JobId,
    after: int,
    limit: int,
    kinds: Collection[Kind] | None,
    write: Callable[[EventRow], str],
) -> Response:
    def read(conn: Connection) -> str:
        head = jobs.get(conn, services.project, job).last_no
        rows = events.after(conn, job, after, limit, kinds)
        is_full = len(rows) == limit
        last_no = rows[-1].no if is_full else max(head, after)
        next_cursor = f'"{last_no}"' if is_full and last_no < head else "null"
        # Events are stored as JSON. Parsing and writing the JSON of 10,000 events again would take too long.
        return f'{{"data":[{",".join([write(row) for row in rows])}],"next_cursor":{next_cursor},"last":{last_no}}}'

    return Response(await services.db.read(read), media_type="application/json")


def read_kinds(text: str | None) -> frozenset[Kind] | None:
    """Returns the kinds in a list with commas. None means all kinds. Raises InvalidQuery."""
    if text is None:
        return None
    names = [name for name in comma_list(text, "kinds", MOST_KINDS) if name]
    require_known("kinds", "unknown_kind", names or [""], list(Kind))
    return frozenset(map(Kind, names))


@router.get("/jobs/{job}/attempts", summary="The job's attempts")
async def list_attempts(request: Request, job: JobPath) -> AttemptList:
    services = services_of(request)

    def read(conn: Connection) -> AttemptList:
        jobs.get(conn, services.project, job_id(job))
        sources = attempts.sources_of_job(conn, job_id(job))
        names = {node.id: node.name for node in nodes.all_nodes(conn)} if sources else {}
        data = tuple(views.attempt(row, sources, names) for row in attempts.of_job(conn, job_id(job)))
        return AttemptList(data=data, next_cursor=None)

    return await services.db.read(read)


@router.get("/jobs/{job}/spec", summary="The effective spec, with every default")
async def get_spec(request: Request, job: JobPath) -> Response:
    services = services_of(request)
    row = await services.db.read(jobs.get, services.project, job_id(job))
    return Response(row.spec, 200, {"ETag": views.etag(row.version)}, "application/json")


@router.get(
    "/jobs/{job}/logs",
    summary="The lines that training printed; as plain text too",
    response_model=LineList,
    responses=media_type_response(TEXT),
)
async def list_lines(
    request: Request,
    response: Response,
    job: JobPath,
    after: After = 0,
    limit: Limit = 1000,
    stream: Annotated[Literal["stdout", "stderr"] | None, Query(description="Only lines of this stream.")] = None,
    rank: Annotated[int | None, Query(ge=0, le=2**31 - 1, description="Only lines of this rank.")] = None,
    grep: Annotated[
        str | None, Query(min_length=1, max_length=1000, description="Only lines that contain this text, literally.")
    ] = None,
) -> LineList | Response:
    """Returns a page. Each page searches a limited number of events, so it may be empty although a next page exists."""
    services = services_of(request)

    def read(conn: Connection) -> LineList:
        head = jobs.get(conn, services.project, job_id(job)).last_no
        return log_lines.page(conn, job_id(job), head, after, limit, stream=stream, rank=rank, grep=grep)

    page = await services.db.read(read)
    if wants(request, TEXT):
        headers = {**VARIES, "Footplate-Last": str(page.last)}
        if page.next_cursor:
            url = URL(scope=request.scope).include_query_params(after=page.next_cursor)
            headers["Link"] = f'<{url.path}?{url.query}>; rel="next"'
        lines = "".join(f"{clean(line.text)}\n" for line in page.data)
        return Response(lines, 200, headers, f"{TEXT}; charset=utf-8")
    response.headers.update(VARIES)
    return page
