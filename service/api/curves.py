"""Routes for metrics as curves: a summary of each metric, and points for a chart."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Request
from sqlalchemy import Connection
from starlette.responses import Response

from footplate.contract.errors import Problem
from footplate.contract.ids import JobId
from footplate.contract.name_list import split_names
from footplate.contract.resources.history import MetricSummary, MetricSummaryList, Series, SeriesList
from service.api.documented import media_type_response
from service.api.formats import CSV, VARIES, csv_download, csv_text, wants
from service.deps import NO_NUL, JobPath, Services, StrictRoute, job_id, services_of
from service.events.series import Axis, Steps, names_of, series, summaries
from service.problems import InvalidQuery
from service.store import jobs

router = APIRouter(route_class=StrictRoute, tags=["metrics"])

MOST_POINTS = 10_000
MOST_IN_ALL = 100_000
"""The most points of all curves in one answer."""
POINTS_PER_READ = 20_000
"""The most points of all curves that are read in one go. Then the reads of other requests have their turn."""
MOST_JOBS = 100
MOST_NAMES = 1000
STEP = {"ge": 0, "le": 2**53}


@dataclass(frozen=True, slots=True)
class CurveSelection:
    """The query parameters that select the curves and their points."""

    names: Annotated[
        str | None,
        Query(
            min_length=1,
            max_length=20_000,
            description="Only these metrics, separated by commas. Left out: all. In a name, a comma is written as "
            "`\\,` and a backslash as `\\\\`.",
            json_schema_extra=NO_NUL,
        ),
    ] = None
    x: Annotated[
        Axis,
        Query(
            description="The x axis: the optimizer step, the time, or the epoch. Points without this value are left "
            "out."
        ),
    ] = "step"
    points: Annotated[int, Query(ge=10, le=MOST_POINTS, description="The most points of each curve.")] = 1000
    everything: Annotated[
        bool,
        Query(
            description="If a later attempt repeated steps, include the points of both. Default: only the later ones."
        ),
    ] = False
    first_step: Annotated[
        int | None,
        Query(**STEP, description="Only points of this step and later ones. A shorter range shows finer points."),
    ] = None
    last_step: Annotated[int | None, Query(**STEP, description="Only points of this step and earlier ones.")] = None


@router.get(
    "/jobs/{job}/metrics/summary",
    summary="The last, least and greatest value of each metric, with their steps; as CSV too",
    response_model=MetricSummaryList,
    responses=media_type_response(CSV),
)
async def summarize_metrics(request: Request, response: Response, job: JobPath) -> MetricSummaryList | Response:
    services = services_of(request)
    project, requested_id = services.project, job_id(job)

    def read(conn: Connection) -> list[MetricSummary]:
        jobs.get(conn, project, requested_id)
        return summaries(conn, requested_id)

    metrics = await services.db.read(read)
    if wants(request, CSV):
        return csv_download(csv_text([_SUMMARY_COLUMNS, *map(_summary_row, metrics)]), name=f"{job}-summary")
    response.headers.update(VARIES)
    return MetricSummaryList(data=tuple(metrics), next_cursor=None)


@router.get(
    "/jobs/{job}/metrics/series",
    summary="Curves, down-sampled so that every spike survives; as CSV too",
    responses=media_type_response(CSV, SeriesList),
)
async def get_series(request: Request, job: JobPath, selection: Annotated[CurveSelection, Depends()]) -> Response:
    return await _series(request, [job_id(job)], selection, job)


@router.get(
    "/metrics/series",
    summary="Curves of several jobs; as CSV too",
    responses=media_type_response(CSV, SeriesList) | {404: {}},
)
async def compare_series(
    request: Request,
    jobs: Annotated[
        str,
        Query(
            min_length=1, max_length=10_000, description="Ids of jobs, separated by commas.", json_schema_extra=NO_NUL
        ),
    ],
    selection: Annotated[CurveSelection, Depends()],
) -> Response:
    job_ids = list(map(job_id, _different(jobs.split(","), "jobs", jobs)))
    if len(job_ids) > MOST_JOBS:
        detail = f"names {len(job_ids)} jobs, and at most {MOST_JOBS} are compared in one request"
        raise InvalidQuery([Problem("/query/jobs", "too_many", detail, "send several requests")])
    return await _series(request, job_ids, selection, "series")


async def _series(request: Request, job_ids: Sequence[JobId], selection: CurveSelection, file: str) -> Response:
    """Returns curves. They are read and encoded in a thread, some at a time, so that the event loop stays free."""
    services = services_of(request)
    text = selection.names
    names = None if text is None else _different(split_names(text), "names", text)
    names_by_job = await services.db.read(_chosen, services, job_ids, names, selection.points)
    encode = _csv_lines if wants(request, CSV) else Series.model_dump_json
    pieces: list[str] = []
    curves_at_once = POINTS_PER_READ // selection.points
    for job, job_names in names_by_job:
        for first in range(0, len(job_names), curves_at_once):
            some_names = job_names[first : first + curves_at_once]
            pieces += await services.db.read_long(_encoded, job, some_names, selection, encode)
    if encode is _csv_lines:
        return csv_download(csv_text([["job", "name", "attempt", selection.x, "value"]]), *pieces, name=file)
    body = f'{{"x":"{selection.x}","data":[{",".join(pieces)}],"next_cursor":null}}'
    return Response(body, 200, VARIES, "application/json")


def _encoded(
    conn: Connection, job: JobId, names: Sequence[str], selection: CurveSelection, encode: Callable[[Series], str]
) -> list[str]:
    steps = Steps(selection.first_step, selection.last_step)
    axis, everything = selection.x, selection.everything
    return [encode(curve) for curve in series(conn, job, names, selection.points, axis, everything, steps)]


def _chosen(
    conn: Connection, services: Services, job_ids: Sequence[JobId], names: list[str] | None, points: int
) -> list[tuple[JobId, list[str]]]:
    """Returns the names of the curves of each job. Raises NotFound, or InvalidQuery for too many points."""
    for job in job_ids:
        jobs.get(conn, services.project, job)
    names_by_job = [(job, names_of(conn, job) if names is None else names) for job in job_ids]
    count = sum(len(job_names) for _, job_names in names_by_job)
    if count * points > MOST_IN_ALL:
        detail = f"{count} curves of {points} points each exceed the limit of {MOST_IN_ALL:,} points in one answer"
        raise InvalidQuery([Problem("/query/points", "too_many", detail, "request fewer points, names or jobs")])
    return names_by_job


def _different(entries: Iterable[str], parameter: str, text: str) -> list[str]:
    """Returns the different entries of a query parameter. Raises InvalidQuery if there are none or too many."""
    names = list(dict.fromkeys(filter(None, entries)))
    if len(names) > MOST_NAMES:
        raise InvalidQuery([Problem(f"/query/{parameter}", "too_many", f"has more than {MOST_NAMES} entries")])
    if names:
        return names
    detail = f"{text[:80]!r} contains no name"
    raise InvalidQuery([Problem(f"/query/{parameter}", "invalid_parameter", detail, "leave it out")])


def _csv_lines(curve: Series) -> str:
    attempt, upcoming = 0, {part.first: part.attempt for part in curve.attempts}
    rows: list[tuple[Any, ...]] = []
    for place, point in enumerate(zip(curve.x, curve.y, strict=True)):
        attempt = upcoming.get(place, attempt)
        rows.append((curve.job, curve.name, attempt, *point))
    return csv_text(rows)


_SUMMARY_COLUMNS = ("name", "count", "not_finite", "last", "last_step", "min", "min_step", "max", "max_step")


def _summary_row(summary: MetricSummary) -> list[Any]:
    metrics = (summary.last, summary.min, summary.max)
    figures = [(metric.value, metric.step) if metric else (None, None) for metric in metrics]
    return [summary.name, summary.count, summary.not_finite, *(figure for pair in figures for figure in pair)]
