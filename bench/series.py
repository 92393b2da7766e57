"""Measures `GET /jobs/{id}/metrics/series` for a curve with millions of points. The answer must have its spike.

SQL itself writes the events, and the code of ingest writes their buckets.
"""

from __future__ import annotations

import time
from functools import partial
from operator import methodcaller
from typing import Any

import httpx2
from sqlalchemy import text

from bench import report
from footplate.contract.ids import JobId
from service.events.curves import Column, Curve, bucket_rows
from service.store import curves, jobs
from service.store.database import Database
from service.store.row_types import CurveRow
from tests.conformance.acting import Stage

GOALS_MS = {100_000: 100, 10_000_000: 300}
AT = "2026-01-01T00:00:00.000Z"
SPIKE = 1e6
CHUNK = 100_000
_NUMBERS = {
    "sqlite": "WITH RECURSIVE many(n) AS (SELECT 2 UNION ALL SELECT n + 1 FROM many WHERE n <= :count)",
    "postgresql": "WITH many AS (SELECT generate_series(2, :count + 1) AS n)",
}
_EVENTS = """
INSERT INTO events (job_id, no, attempt, source, seq, rank, kind, at, step, epoch, data)
{numbers} SELECT :job, n, 1, 0, n, 0, 'log', :at, n, 1.0,
  '{{"loss":' || CASE WHEN n = :spike THEN '1000000.0' ELSE CAST(n % 1000 * 7919 % 1000 AS TEXT) || '.0' END || '}}'
FROM many
"""


def filled(db: Database, count: int) -> JobId:
    job = Stage(db).submit()
    spike = count // 3
    numbers = _NUMBERS[db.dialect]
    values = {"job": job, "count": count, "at": AT, "spike": spike}
    # One statement of ten million rows would exceed the service's time limit for statements.
    for first_step in range(0, count, 1_000_000):
        part = values | {"count": min(count, first_step + 1_000_000)}
        statement = _EVENTS.format(
            numbers=numbers.replace("2 UNION", f"{first_step + 2} UNION").replace("(2,", f"({first_step + 2},")
        )
        db.write_now(methodcaller("execute", text(statement), part))
    curve = Curve()
    for first_step in range(2, count + 2, CHUNK):
        column = _column(first_step, min(first_step + CHUNK, count + 2), spike)
        full = list(bucket_rows(job, 1, "loss", curve.feed(column)))
        db.write_now(partial(curves.add, rows=full))
    db.write_now(lambda conn: curves.save(conn, [CurveRow(job, 1, "loss", curve.written())]))
    db.write_now(lambda conn: jobs.record(conn, job, last_no=count + 1))
    return job


def _column(first: int, behind: int, spike: int) -> Column:
    nos = list(range(first, behind))
    values = [SPIKE if no == spike else float(no * 7919 % 1000) for no in nos]
    return Column(nos, [AT] * len(nos), list(nos), [1.0] * len(nos), values)


def measure(client: httpx2.Client, database: str, job: JobId, count: int) -> list[report.Row]:
    rows = []
    for what, path in (("1,000 points of it", "series?points=1000"), ("its summary", "summary")):
        milliseconds = []
        for _ in range(20):
            start = time.perf_counter()
            answer = client.get(f"/jobs/{job}/metrics/{path}")
            milliseconds.append(1000 * (time.perf_counter() - start))
            _verify(answer.json()["data"][0], count)
        goal = f"≤ {GOALS_MS[count]}" if count in GOALS_MS else ""
        rows.append(report.Row(f"a curve of {count:,} points, {database}: {what}", milliseconds, "ms", goal))
    return rows


def _verify(curve: dict[str, Any], count: int) -> None:
    assert curve["count"] == count
    if "y" in curve:
        assert 250 <= len(curve["y"]) <= 1000
        assert SPIKE in curve["y"], "the spike is missing"
