"""Statements about curves: a summary of each metric and buckets of its points. The points are in the events."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import asdict, dataclass

from sqlalchemy import Connection, bindparam, func, insert, or_, select, text, tuple_, update

from footplate.contract.ids import JobId
from service.store.mapping import upsert, values_of
from service.store.row_types import BucketRow, CurveRow
from service.store.tables import curve_buckets, curves

_ADD = insert(curve_buckets)
_OF_JOB = (
    select(curves.c.attempt, curves.c.name, curves.c.body, curves.c.until)
    .where(curves.c.job_id == bindparam("job_id"))
    .order_by(curves.c.attempt, curves.c.name)
)
_ONE = (
    curve_buckets.c.job_id == bindparam("job_id"),
    curve_buckets.c.attempt == bindparam("attempt"),
    curve_buckets.c.name == bindparam("name"),
    curve_buckets.c.level == bindparam("level"),
    curve_buckets.c.place >= bindparam("first"),
    curve_buckets.c.place < bindparam("end"),
)
_BODIES = select(curve_buckets.c.body).where(*_ONE).order_by(curve_buckets.c.place)
_NOS = select(curve_buckets.c.nos).where(*_ONE).order_by(curve_buckets.c.place)
_REACHING = select(func.min(curve_buckets.c.place)).where(*_ONE, curve_buckets.c.reaches >= bindparam("step"))
MOST_AT_ONCE = 1000
"""The most event numbers in one statement."""


@dataclass(frozen=True, slots=True)
class BucketRange:
    """Consecutive buckets of one level of a curve, from index `first` up to, but not including, index `end`."""

    job_id: JobId
    attempt: int
    name: str
    level: int
    first: int
    end: int


def of_attempts(conn: Connection, attempts: Collection[tuple[JobId, int]]) -> list[CurveRow]:
    """Returns the stored curves of these attempts, so that new points can be added to them."""
    columns = (curves.c.job_id, curves.c.attempt, curves.c.name, curves.c.body, curves.c.until)
    query = select(*columns).where(tuple_(curves.c.job_id, curves.c.attempt).in_(sorted(attempts)))
    return [CurveRow(*row) for row in conn.execute(query)]


def of_job(conn: Connection, job_id: JobId) -> list[CurveRow]:
    """Returns a job's curves, sorted by attempt and then by name."""
    return [CurveRow(job_id, *row) for row in conn.execute(_OF_JOB, {"job_id": job_id})]


def save(conn: Connection, rows: Iterable[CurveRow]) -> None:
    if values := list(map(values_of, rows)):
        upsert(conn, curves, values)


def end_at(conn: Connection, job_id: JobId, step: int, *, before: int) -> None:
    """Ends the curves of the attempts `before` this one at a step. Points after the step no longer count."""
    is_longer = or_(curves.c.until.is_(None), curves.c.until > step)
    is_earlier = (curves.c.job_id == job_id) & (curves.c.attempt < before)
    conn.execute(update(curves).where(is_earlier, is_longer).values(until=step))


def add(conn: Connection, rows: Sequence[BucketRow]) -> None:
    if rows:
        conn.execute(_ADD, list(map(values_of, rows)))


def bodies(conn: Connection, where: BucketRange) -> Sequence[str]:
    return conn.execute(_BODIES, asdict(where)).scalars().all() if where.first < where.end else []


def nos(conn: Connection, where: BucketRange) -> Sequence[str]:
    """Returns the event numbers of the points in each of these buckets as JSON. The buckets must be of level 1.

    `read_nos` of service/events/curves.py decodes the JSON.
    """
    return conn.execute(_NOS, asdict(where)).scalars().all() if where.first < where.end else []


def first_that_reaches(conn: Connection, where: BucketRange, step: int) -> int | None:
    """Returns the index of the first of these buckets with a point at this step or later, or None."""
    place: int | None = conn.execute(_REACHING, asdict(where) | {"step": step}).scalar_one()
    return place


def points(
    conn: Connection, job_id: JobId, numbers: Sequence[int]
) -> dict[int, tuple[str, int | None, float | None, str]]:
    """Returns `at`, step, epoch and data of events, by their numbers."""
    values: dict[int, tuple[str, int | None, float | None, str]] = {}
    for first in range(0, len(numbers), MOST_AT_ONCE):
        # The numbers are written into the statement, which is safe for integers of our own. Binding a thousand
        # parameters would take as long as running the statement.
        number_list = ",".join(map(str, numbers[first : first + MOST_AT_ONCE]))
        query = text(f"SELECT no, at, step, epoch, data FROM events WHERE job_id = :job AND no IN ({number_list})")
        values |= {row[0]: (row[1], row[2], row[3], row[4]) for row in conn.execute(query, {"job": job_id})}
    return values
