"""What waits, in which order, and why. Of other projects' jobs a key sees how many there are, and nothing else."""

from __future__ import annotations

import re
from typing import Annotated

from fastapi import APIRouter, Query, Request
from sqlalchemy import Connection
from starlette.responses import Response

from contract.errors import Problem
from contract.ids import JobId
from service.api import shapes
from service.api.views import moment
from service.deps import StrictRoute, job_id, json_response, services_of
from service.jobs.waiting import Place, places
from service.problems import InvalidQuery
from service.store import jobs, queue
from service.store.queue import WaitingRow
from service.store.times import now_ms

router = APIRouter(route_class=StrictRoute, tags=["jobs"])
_CURSOR = re.compile(r"([01])\.(-?\d{1,16})\.(\d{1,16})\.(job_[0-9a-f]{32})")


@router.get(
    "/queue",
    operation_id="get_queue",
    summary="What waits, in which order, and why",
    **shapes.answers(shapes.Queue, fails=(404,)),
)
async def get_queue(
    request: Request,
    job: Annotated[str | None, Query(description="Only this one; none where it does not wait.")] = None,
    cursor: Annotated[str | None, Query(description="next_cursor of the page before.", max_length=100)] = None,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
) -> Response:
    """The order in which placement tries them. It looks at the 10,000 most urgent: jobs behind those are not listed."""
    services = services_of(request)
    caller = services.caller
    project = None if caller.is_everywhere and caller.asked is None else caller.project
    asked = None if job is None else job_id(job)

    def read(conn: Connection) -> tuple[list[WaitingRow], dict[str, int]]:
        if asked is not None and project is not None:
            jobs.get(conn, project, asked)
        return queue.seen(conn), queue.counts(conn)

    rows, counts = await services.db.read(read)
    now = now_ms()
    mine = [one for one in places(rows, now) if project in (None, one.row.project) and asked in (None, one.row.id)]
    page, following = _page(mine, cursor, limit)
    yours = sum(count for name, count in counts.items() if project in (None, name))
    waiting = {"yours": yours, "others": sum(counts.values()) - yours}
    return json_response({"data": [_queued(one, now) for one in page], "next_cursor": following, "waiting": waiting})


def _page(found: list[Place], cursor: str | None, limit: int) -> tuple[list[Place], str | None]:
    """By keyset: jobs come and go between two pages, and none is there twice."""
    behind = None if cursor is None else _read(cursor)
    rest = found if behind is None else [one for one in found if one.key > behind]
    page = rest[:limit]
    return page, ".".join(map(str, page[-1].key)) if len(rest) > limit else None


def _read(cursor: str) -> tuple[int, int, int, JobId]:
    match = _CURSOR.fullmatch(cursor)
    if match is None:
        detail = "is not a cursor of this list"
        raise InvalidQuery([Problem("/query/cursor", "bad_cursor", detail, "start again without a cursor")])
    return int(match[1]), int(match[2]), int(match[3]), JobId(match[4])


def _queued(one: Place, now: int) -> shapes.Json:
    row = one.row
    return {
        "job": row.id,
        "project": row.project,
        "name": row.name,
        "priority": row.priority,
        "pool": one.needs.pool,
        "needs": str(one.needs),
        "place": one.number,
        "ahead": {"yours": one.yours, "others": one.others},
        "reason": row.reason,
        "message": row.message,
        "queued_at": moment(row.queued_at),
        "waited_s": max(0, now - row.waits_since) / 1000,
        "starts_after": moment(row.not_before) if one.number is None else None,
    }
