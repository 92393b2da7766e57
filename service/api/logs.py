"""The route for the lines that training printed, as JSON or as plain text, page by page."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

from fastapi import APIRouter, Query, Request
from sqlalchemy import Connection
from starlette.datastructures import URL
from starlette.responses import Response

from footplate.contract.resources.history import Line, LineList
from service.api.documented import also
from service.api.formats import TEXT, VARIES, clean, wants
from service.api.history import After, Limit
from service.deps import JobPath, StrictRoute, job_id, services_of
from service.store import jobs, log_lines
from service.store.log_lines import LineFilter, LinePage, LineRow

router = APIRouter(route_class=StrictRoute, tags=["history"])


@router.get(
    "/jobs/{job}/logs",
    operation_id="list_lines",
    summary="The lines that training printed; as plain text too",
    response_model=LineList,
    responses=also(TEXT),
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
    wanted = LineFilter(job_id(job), stream, rank, grep)

    def read(conn: Connection) -> LinePage:
        head = jobs.get(conn, services.project, wanted.job).last_no
        return log_lines.page(conn, wanted, after, limit, head)

    page = await services.db.read(read)
    following = str(page.last) if page.has_more else None
    if wants(request, TEXT):
        headers = {**VARIES, "Footplate-Last": str(page.last)}
        if following:
            url = URL(scope=request.scope).include_query_params(after=following)
            headers["Link"] = f'<{url.path}?{url.query}>; rel="next"'
        return Response(_text(page.rows), 200, headers, f"{TEXT}; charset=utf-8")
    response.headers.update(VARIES)
    return LineList(data=tuple(map(_line, page.rows)), next_cursor=following, last=page.last)


def _line(row: LineRow) -> Line:
    # A printed line may contain a lone surrogate, which cannot be written as UTF-8.
    text = row.text.encode("utf-8", "replace").decode()
    return Line(no=row.no, at=row.at, attempt=row.attempt, rank=row.rank, stream=row.stream, text=text)


def _text(rows: Sequence[LineRow]) -> str:
    return "".join(f"{clean(row.text)}\n" for row in rows)
