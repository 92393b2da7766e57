"""Lists the jobs that train, without serving sessions, exports and runs elsewhere."""

from __future__ import annotations

import json
from collections.abc import Callable

from sqlalchemy import Connection

from footplate.contract.ids import JobId
from service.store import job_list
from service.store.job_list import JobFilter
from service.store.rows import JobRow


def newest(
    conn: Connection,
    filter: JobFilter,
    after: JobId | None,
    limit: int,
    matches: Callable[[JobRow], bool] = lambda row: True,
) -> list[JobRow]:
    """Returns matching jobs, newest first, with ids below `after`."""
    trainings: list[JobRow] = []
    while len(trainings) < limit:
        rows = job_list.newest(conn, filter, after, limit)
        trainings += [row for row in rows if is_training(row) and matches(row)]
        if len(rows) < limit:
            break
        after = rows[-1].id
    return trainings[:limit]


def is_training(row: JobRow) -> bool:
    """Returns False for a job that serves or exports the checkpoint of another one, or that runs elsewhere."""
    spec = json.loads(row.spec)
    return not (row.runs_elsewhere or spec.get("serve") or spec.get("export"))
