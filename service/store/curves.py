"""Statements about curves: a summary and buckets of points per metric. The points themselves are in the events."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, bindparam, func, insert, select, text, tuple_

from footplate.contract.ids import JobId
from service.store.mapping import upsert, values_of
from service.store.rows import BucketRow, CurveRow
from service.store.tables import curve_buckets, curves

_SAVE = upsert(curves)
_ADD = insert(curve_buckets)
_OF_JOB = (
    select(curves.c.attempt, curves.c.name, curves.c.body)
    .where(curves.c.job_id == bindparam("job_id"))
    .order_by(curves.c.attempt, curves.c.name)
)
_ONE = (
    curve_buckets.c.job_id == bindparam("job_id"),
    curve_buckets.c.attempt == bindparam("attempt"),
    curve_buckets.c.name == bindparam("name"),
    curve_buckets.c.level == bindparam("level"),
    curve_buckets.c.place >= bindparam("first"),
    curve_buckets.c.place < bindparam("behind"),
)
_BODIES = select(curve_buckets.c.body).where(*_ONE).order_by(curve_buckets.c.place)
_NOS = select(curve_buckets.c.nos).where(*_ONE).order_by(curve_buckets.c.place)
_REACHING = select(func.min(curve_buckets.c.place)).where(*_ONE, curve_buckets.c.reaches >= bindparam("step"))
MOST_AT_ONCE = 1000
"""The most numbers in one statement."""


@dataclass(frozen=True, slots=True)
class Stretch:
    """Some buckets of one level, from the place `first` to the one before `behind`."""

    job_id: JobId
    attempt: int
    name: str
    level: int
    first: int
    behind: int

    def asked(self, **more: Any) -> dict[str, Any]:
        names = ("job_id", "attempt", "name", "level", "first", "behind")
        return {name: getattr(self, name) for name in names} | more


def of_attempts(conn: Connection, wanted: Collection[tuple[JobId, int]]) -> list[CurveRow]:
    """Returns the rows of the attempts' curves, to which new points are added."""
    columns = (curves.c.job_id, curves.c.attempt, curves.c.name, curves.c.body)
    wanted_rows = select(*columns).where(tuple_(curves.c.job_id, curves.c.attempt).in_(sorted(wanted)))
    return [CurveRow(*row) for row in conn.execute(wanted_rows)]


def of_job(conn: Connection, job_id: JobId, names: Collection[str] | None = None) -> list[CurveRow]:
    """Returns a job's curves, sorted by attempt and then by name."""
    wanted = _OF_JOB if names is None else _OF_JOB.where(curves.c.name.in_(sorted(names)))
    return [CurveRow(job_id, *row) for row in conn.execute(wanted, {"job_id": job_id})]


def save(conn: Connection, rows: Iterable[CurveRow]) -> None:
    if values := list(map(values_of, rows)):
        conn.execute(_SAVE[conn.dialect.name], values)


def add(conn: Connection, rows: Sequence[BucketRow]) -> None:
    if rows:
        conn.execute(_ADD, list(map(values_of, rows)))


def bodies(conn: Connection, where: Stretch) -> Sequence[str]:
    return conn.execute(_BODIES, where.asked()).scalars().all() if where.first < where.behind else []


def nos(conn: Connection, where: Stretch) -> Sequence[str]:
    """Returns the numbers of the events of each point, from buckets of the lowest level."""
    return conn.execute(_NOS, where.asked()).scalars().all() if where.first < where.behind else []


def first_that_reaches(conn: Connection, where: Stretch, step: int) -> int | None:
    """Returns the first place whose bucket has a point at this step or after it."""
    place: int | None = conn.execute(_REACHING, where.asked(step=step)).scalar_one()
    return place


def points(
    conn: Connection, job_id: JobId, numbers: Sequence[int]
) -> dict[int, tuple[str, int | None, float | None, str]]:
    """Returns `at`, step, epoch and data of events, by their numbers."""
    values: dict[int, tuple[str, int | None, float | None, str]] = {}
    for first in range(0, len(numbers), MOST_AT_ONCE):
        # Written into the statement, which is safe for our own whole numbers. To prepare a thousand parameters would
        # take as long
        # as to run the statement.
        some = ",".join(map(str, numbers[first : first + MOST_AT_ONCE]))
        asked = text(f"SELECT no, at, step, epoch, data FROM events WHERE job_id = :job AND no IN ({some})")
        values |= {row[0]: (row[1], row[2], row[3], row[4]) for row in conn.execute(asked, {"job": job_id})}
    return values
