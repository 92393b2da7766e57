"""Metrics as curves: what each came to, and as many points of it as somebody can draw."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from sqlalchemy import Connection
from starlette.responses import Response

from footplate.contract.errors import Problem
from footplate.contract.ids import JobId
from footplate.contract.resources import history
from footplate.contract.resources.history import MetricSummary, MetricSummaryList, SeenMetric, SeriesList
from service.api.documented import also
from service.api.formats import CSV, VARIES, csv_response, wants
from service.deps import NO_NUL, JobPath, Services, StrictRoute, job_id, services_of
from service.events.series import Axis, Seen, Series, Summary, names_of, on_axis, series, summaries
from service.problems import InvalidQuery, comma_list
from service.store import jobs

router = APIRouter(route_class=StrictRoute, tags=["metrics"])

MOST_POINTS = 10_000
MOST_IN_ALL = 100_000
"""Points of all curves of one answer."""
MOST_JOBS = 100
MOST_NAMES = 1000
Names = Annotated[
    str | None,
    Query(
        min_length=1,
        max_length=20_000,
        description="Only these, with commas; else every one.",
        json_schema_extra=NO_NUL,
    ),
]
Points = Annotated[int, Query(ge=10, le=MOST_POINTS, description="At most so many for each curve.")]
Which = Annotated[
    Axis, Query(description="What x is: the optimizer step, the moment, or the epoch. Points without it are left out.")
]
Everything = Annotated[
    bool, Query(description="Also what a later attempt repeats; else such steps are shown as the later one saw them.")
]


@router.get(
    "/jobs/{job}/metrics/summary",
    operation_id="summarize_metrics",
    summary="Each metric's last, least and most, and where; as CSV too",
    response_model=MetricSummaryList,
    responses=also(CSV),
)
async def summarize_metrics(request: Request, response: Response, job: JobPath) -> MetricSummaryList | Response:
    services = services_of(request)
    project, asked = services.project, job_id(job)

    def read(conn: Connection) -> list[Summary]:
        jobs.get(conn, project, asked)
        return summaries(conn, asked)

    found = await services.db.read(read)
    if wants(request, CSV):
        return csv_response(_SUMMARY_COLUMNS, map(_summary_row, found), f"{job}-summary")
    response.headers.update(VARIES)
    return MetricSummaryList(data=tuple(map(_summary, found)), next_cursor=None)


@router.get(
    "/jobs/{job}/metrics/series",
    operation_id="get_series",
    summary="Curves, down-sampled so that every spike survives; as CSV too",
    response_model=SeriesList,
    responses=also(CSV),
)
async def get_series(
    request: Request,
    response: Response,
    job: JobPath,
    names: Names = None,
    x: Which = "step",
    points: Points = 1000,
    everything: Everything = False,
) -> SeriesList | Response:
    return await _series(request, response, [job_id(job)], names, x, points, everything, job)


@router.get(
    "/metrics/series",
    operation_id="compare_series",
    summary="Curves of several jobs; as CSV too",
    response_model=SeriesList,
    responses=also(CSV) | {404: {}},
)
async def compare_series(
    request: Request,
    response: Response,
    jobs: Annotated[
        str, Query(min_length=1, max_length=10_000, description="Ids, with commas.", json_schema_extra=NO_NUL)
    ],
    names: Names = None,
    x: Which = "step",
    points: Points = 1000,
    everything: Everything = False,
) -> SeriesList | Response:
    asked = list(map(job_id, _split(jobs, "jobs")))
    if len(asked) > MOST_JOBS:
        detail = f"names {len(asked)} jobs, {MOST_JOBS} are compared at once"
        raise InvalidQuery([Problem("/query/jobs", "too_many", detail, "ask in several requests")])
    return await _series(request, response, asked, names, x, points, everything, "series")


async def _series(
    request: Request,
    response: Response,
    asked: Sequence[JobId],
    names: str | None,
    x: Axis,
    points: int,
    everything: bool,
    file: str,
) -> SeriesList | Response:
    services = services_of(request)
    wanted = None if names is None else _split(names, "names")

    def read(conn: Connection) -> list[Series]:
        curves = _chosen(conn, services, asked, wanted, points)
        return [one for job, some in curves for one in series(conn, job, some, points, everything=everything)]

    found = await services.db.read(read)
    if wants(request, CSV):
        return csv_response(["job", "name", "attempt", x, "value"], _series_rows(found, x), file)
    response.headers.update(VARIES)
    return SeriesList(x=x, data=tuple(_curve(one, x) for one in found), next_cursor=None)


def _chosen(
    conn: Connection, services: Services, asked: Sequence[JobId], names: list[str] | None, points: int
) -> list[tuple[JobId, list[str]]]:
    """Which curves of each job. Raises NotFound; InvalidQuery for more than one answer can hold."""
    for job in asked:
        jobs.get(conn, services.project, job)
    chosen = [(job, names_of(conn, job) if names is None else names) for job in asked]
    count = sum(len(some) for _, some in chosen)
    if count * points > MOST_IN_ALL:
        detail = f"{count} curves of {points} points each are more than the {MOST_IN_ALL:,} of one answer"
        raise InvalidQuery([Problem("/query/points", "too_many", detail, "ask for fewer points, names or jobs")])
    return chosen


def _split(text: str, parameter: str) -> list[str]:
    """Each once."""
    if found := list(dict.fromkeys(one for one in comma_list(text, parameter, MOST_NAMES) if one)):
        return found
    raise InvalidQuery([Problem(f"/query/{parameter}", "invalid_parameter", f"{text!r} names none", "leave it out")])


def _curve(one: Series, x: Axis) -> history.Series:
    xs, ys, attempts = on_axis(one, x)
    return history.Series(
        job=one.job,
        name=one.name,
        count=one.count,
        left_out=one.left_out,
        exact=one.is_exact,
        attempts=tuple(history.SeriesAttempt(attempt=attempt, first=first) for attempt, first in attempts),
        x=tuple(xs),
        y=tuple(ys),
    )


def _series_rows(found: Sequence[Series], x: Axis) -> Iterator[tuple[Any, ...]]:
    for one in found:
        xs, ys, attempts = on_axis(one, x)
        attempt, upcoming = 0, {first: attempt for attempt, first in attempts}
        for place, point in enumerate(zip(xs, ys, strict=True)):
            attempt = upcoming.get(place, attempt)
            yield one.job, one.name, attempt, *point


def _summary(one: Summary) -> MetricSummary:
    return MetricSummary(
        name=one.name,
        count=one.count,
        not_finite=one.not_finite,
        last=_seen(one.last),
        min=_seen(one.least) if one.least else None,
        max=_seen(one.most) if one.most else None,
    )


def _seen(seen: Seen) -> SeenMetric:
    value, no, at, step, epoch = seen.point
    return SeenMetric(
        value=value, no=no, step=step, epoch=epoch, at=at, attempt=seen.attempt, repeated=seen.repeated
    )  # fmt: skip


_SUMMARY_COLUMNS = ("name", "count", "not_finite", "last", "last_step", "min", "min_step", "max", "max_step")


def _summary_row(one: Summary) -> list[Any]:
    seen = (one.last, one.least, one.most)
    figures = [(found.point[0], found.point[3]) if found else (None, None) for found in seen]
    return [one.name, one.count, one.not_finite, *(figure for pair in figures for figure in pair)]
