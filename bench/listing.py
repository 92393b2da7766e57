"""Measures pages of `GET /jobs` in a large table: the first, a middle one, the last, and filtered ones.

All jobs but one are copies of that one, made by SQL. Nine of ten have succeeded, and a thousand wait.
"""

from __future__ import annotations

import time
from functools import partial
from operator import methodcaller
from typing import Any

import httpx2
from sqlalchemy import text

from bench import report
from service.store.database import Database
from service.store.times import text_of
from tests.conformance.acting import Stage
from tests.support.many_jobs import BORN_MS, copy_job, id_of, numbers

ROUNDS = 20
BAR_MS = 20
CHUNK = 100_000
LIMIT = 50
WAITING = 1_000


def fill(db: Database, count: int) -> None:
    template = Stage(db).submit(name="a-run")
    columns = {
        "name": "'run-' || (n % 50000)",
        "state": f"CASE WHEN n <= {WAITING} THEN 'queued' WHEN n % 10 = 0 THEN 'failed' ELSE 'succeeded' END",
        "priority": "n % 7",
        "created_at": f"{BORN_MS} + n",
    }
    kinds = "(SELECT 'all' AS tag, 0 AS rare UNION ALL SELECT 'sweep-', 1) AS kinds"
    tag = "CASE WHEN rare = 1 THEN tag || (n / 1000) ELSE tag END"
    tagged = (
        f"INSERT INTO job_tags (project, tag, job_id) {numbers(db.dialect)}"
        f" SELECT 'default', {tag}, {id_of(db.dialect)} FROM many CROSS JOIN {kinds}"
    )
    for first in range(1, count + 1, CHUNK):
        last = min(count, first + CHUNK - 1)
        db.write_now(partial(copy_job, job=template, first=first, last=last, **columns))
        db.write_now(methodcaller("execute", text(tagged), {"first": first, "last": last}))
    db.write_now(methodcaller("execute", text("ANALYZE")))


def measure(client: httpx2.Client, database: str, count: int) -> list[report.Row]:
    middle = {"cursor": _cursor_behind(client, count // 2)}
    questions: dict[str, dict[str, Any]] = {
        "the first": {},
        "in the middle": middle,
        "the last": {"sort": "created"},
        "failed ones, in the middle": {"state": "failed", **middle},
        "of three states, in the middle": {"state": "queued,failed,succeeded", **middle},
        "those waiting": {"state": "queued"},
        "a tag of all, in the middle": {"tag": "all", **middle},
        "a tag of a thousand": {"tag": f"sweep-{count // 2000}"},
        "a name": {"name": "run-77"},
        "by priority": {"sort": "-priority"},
        "those waiting, by priority": {"state": "queued", "sort": "-priority"},
        "a tag of all, by priority": {"tag": "all", "sort": "-priority"},
    }
    return [
        report.Row(f"of {count:,} jobs, {database}: {what}", _took(client, query), "ms", f"≤ {BAR_MS}")
        for what, query in questions.items()
    ]


def _cursor_behind(client: httpx2.Client, number: int) -> str:
    """Returns a cursor after this number of jobs. It fits any filter, because a cursor contains only a position."""
    created_before = text_of(BORN_MS + number)
    return str(client.get("/jobs", params={"created_before": created_before, "limit": 1}).json()["next_cursor"])


def _took(client: httpx2.Client, query: dict[str, Any]) -> list[float]:
    milliseconds = []
    for _ in range(ROUNDS):
        start = time.perf_counter()
        answer = client.get("/jobs", params={"limit": LIMIT, **query})
        milliseconds.append(1000 * (time.perf_counter() - start))
        assert answer.status_code == 200, answer.text
        assert answer.json()["data"], f"no job is found by {query}"
    return milliseconds
