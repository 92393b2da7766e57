"""The route for waiting jobs, in their order, with their reasons. Other projects' jobs are only counted."""

from __future__ import annotations

import re
from typing import Annotated

from fastapi import APIRouter, Query, Request
from sqlalchemy import Connection

from footplate.contract.errors import Problem
from footplate.contract.resources.jobs import Ahead, Queue, QueuedJob
from service.api.views import moment, shown
from service.deps import StrictRoute, job_id, services_of
from service.jobs import waiting
from service.jobs.needs import Needs
from service.jobs.waiting import Key, QueuePage, QueuePlace
from service.problems import InvalidQuery
from service.store import jobs
from service.store.times import now_ms, text_of
from service.store.waiting import WaitingRow, count

router = APIRouter(route_class=StrictRoute, tags=["jobs"])
_CURSOR = re.compile(r"([01])\.((?<=0\.)-?\d{1,3}|(?<=1\.)\d{1,16})\.(\d{1,16})\.(job_[0-9a-f]{32})", re.ASCII)
"""A cursor: 0 and a priority of at most three digits, or 1 and a time. SQL refuses longer priorities."""


@router.get(
    "/queue",
    summary="Waiting jobs in their order, and why they wait",
    responses={404: {}},
)
async def get_queue(
    request: Request,
    job: Annotated[str | None, Query(description="Only this job. The list is empty if the job does not wait.")] = None,
    cursor: Annotated[str | None, Query(description="next_cursor of the page before.", max_length=100)] = None,
    limit: Annotated[int, Query(description="The most jobs of a page.", ge=1, le=1000)] = 100,
) -> Queue:
    """Lists waiting jobs in the order in which placement tries them.

    `place` and `ahead` are exact up to 10,000, and `waiting` is exact up to 1,000. Higher numbers are lower bounds. A
    page may be short although `next_cursor` is set.
    """
    services = services_of(request)
    project = services.caller.limit
    requested_id = None if job is None else job_id(job)

    after = None if cursor is None else _read(cursor)

    def read(conn: Connection) -> tuple[QueuePage, tuple[int, int]]:
        if requested_id is None:
            return waiting.page(conn, project, after, limit), count(conn, project)
        if project is not None:
            jobs.get(conn, project, requested_id)
        return waiting.of_job(conn, project, requested_id), count(conn, project)

    page, (of_project, of_others) = await services.db.read(read)
    now = now_ms()
    following = None if page.following is None else ".".join(map(str, page.following))
    data = tuple(_queued(place, row, now) for place, row in page.data)
    return Queue(data=data, next_cursor=following, waiting=Ahead(yours=of_project, others=of_others))


def _read(cursor: str) -> Key:
    match = _CURSOR.fullmatch(cursor)
    if match is None:
        detail = "is not a cursor of this list"
        raise InvalidQuery([Problem("/query/cursor", "bad_cursor", detail, "start again without a cursor")])
    return int(match[1]), int(match[2]), int(match[3]), match[4]


def _queued(place: QueuePlace, row: WaitingRow, now: int) -> QueuedJob:
    needs = Needs.from_json(row.needs)
    return shown(
        row,
        QueuedJob,
        job=row.id,
        pool=needs.pool,
        needs=str(needs),
        place=place.number,
        ahead=Ahead(yours=place.yours, others=place.others),
        queued_at=text_of(row.queued_at),
        waited_s=max(0, now - row.waits_since) / 1000,
        starts_after=moment(row.not_before),
    )
