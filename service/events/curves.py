"""Keeps each metric as a pyramid of buckets, so that drawing ten million points reads only some hundreds of buckets.

    level 0    the points, which are the log and eval events
    level 1    a bucket for every 64 points: the lowest, the highest, the first that is not a number, and their events
    level 2    a bucket for every 64 buckets of level 1, and so on

A bucket is written once, when it is full. Each curve also has a row with the bucket of every level that is not full
yet, and a summary of the whole curve. A curve is one metric of one attempt, so that steps which a later attempt repeats
never mix with those of an earlier one.
"""

from __future__ import annotations

import heapq
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, islice, pairwise
from operator import itemgetter
from typing import Any

from pydantic_core import from_json, to_json
from sqlalchemy import Connection

from footplate.contract.ids import JobId
from service.store import curves
from service.store.row_types import BucketRow, CurveRow

FAN = 64
"""The number of points in a bucket, and of buckets in a bucket of the next level."""
MAX_NAMES = 500
"""The most curves of one attempt. Metrics with further names are only in the events."""
MAX_NAMES_READ = 1000
"""The most metric names that are read from one event, so that an event with too many names delays no other event."""
MAX_NAME_CHARS = 200
NOT_FINITE = ("NaN", "Infinity", "-Infinity")
_MOST = sys.float_info.max

Point = tuple[Any, int, str, int | None, float | None]
"""A point of a curve: value (a number, or one of NOT_FINITE), event number, time, step and epoch."""


@dataclass(slots=True)
class Bucket:
    count: int = 0
    reaches: int | None = None
    """The highest step of the bucket's points."""
    least: Point | None = None
    """The lowest of the points that are numbers."""
    most: Point | None = None
    odd: Point | None = None
    """The first point that is not a number."""
    nos: list[int] = field(default_factory=list)

    @classmethod
    def of(cls, column: Column, first: int, end: int) -> Bucket:
        values = column.values[first:end]
        numbers, odd = values, None
        if column.has_odd and (odd_places := [place for place, value in enumerate(values) if type(value) is str]):
            numbers, odd = [value for value in values if type(value) is not str], column.point(first + odd_places[0])
        least = most = None
        if numbers:
            least = column.point(first + values.index(min(numbers)))
            most = column.point(first + values.index(max(numbers)))
        return cls(end - first, column.highest_step(first, end), least, most, odd, column.nos[first:end])

    @classmethod
    def read(cls, values: list[Any]) -> Bucket:
        count, reaches, *points = values
        least, most, odd = [point and tuple(point) for point in points]
        return cls(count, reaches, least, most, odd)

    def written(self) -> list[Any]:
        return [self.count, self.reaches, self.least, self.most, self.odd]

    def add(self, later_bucket: Bucket) -> None:
        """Adds the points of a later bucket. If both have the same lowest or highest value, the earlier point stays."""
        self.count += later_bucket.count
        if later_bucket.reaches is not None and (self.reaches is None or later_bucket.reaches > self.reaches):
            self.reaches = later_bucket.reaches
        if later_bucket.least is not None and (self.least is None or later_bucket.least[0] < self.least[0]):
            self.least = later_bucket.least
        if later_bucket.most is not None and (self.most is None or later_bucket.most[0] > self.most[0]):
            self.most = later_bucket.most
        self.odd = self.odd or later_bucket.odd


@dataclass(slots=True)
class Curve:
    """One metric of one attempt: a summary of all points so far, and the bucket of each level that is not full yet."""

    summary: Bucket = field(default_factory=Bucket)
    last: Point = (0, 0, "", None, None)
    begins: int | None = None
    """The first step at which the attempt logged this metric."""
    odd: int = 0
    """The number of points that are not numbers."""
    open: list[Bucket] = field(default_factory=list)

    @classmethod
    def read(cls, text: str) -> Curve:
        document = from_json(text)
        levels = [Bucket.read(bucket) for bucket in document["open"]]
        levels[0].nos = document["nos"]
        return cls(Bucket.read(document["whole"]), tuple(document["last"]), document["begins"], document["odd"], levels)

    def written(self) -> str:
        document = {
            "whole": self.summary.written(), "last": self.last, "begins": self.begins, "odd": self.odd,
            "open": [bucket.written() for bucket in self.open], "nos": self.open[0].nos,
        }  # fmt: skip
        return to_json(document).decode()

    def feed(self, column: Column) -> Iterator[tuple[int, int, Bucket]]:
        """Adds points at the end of the curve. Yields (level, place, bucket) for each bucket that is full now."""
        if self.begins is None:
            self.begins = next((step for step in column.steps if step is not None), None)
        if column.has_odd:
            self.odd += sum(type(value) is str for value in column.values)
        self.last = column.point(-1)
        if not self.open:
            self.open.append(Bucket())
        first, end = 0, len(column.values)
        while first < end:
            until = min(end, first + FAN - self.open[0].count)
            new_bucket = Bucket.of(column, first, until)
            self.summary.add(new_bucket)
            self.open[0].add(new_bucket)
            self.open[0].nos += new_bucket.nos
            first = until
            if self.open[0].count == FAN:
                yield from self._close()

    def _close(self) -> Iterator[tuple[int, int, Bucket]]:
        level, size = 0, FAN
        while self.open[level].count == size:
            full_bucket, self.open[level] = self.open[level], Bucket()
            yield level + 1, self.summary.count // size - 1, full_bucket
            level, size = level + 1, size * FAN
            if level == len(self.open):
                self.open.append(Bucket())
            self.open[level].add(full_bucket)


@dataclass(slots=True)
class Column:
    """The points of one metric in order, as parallel lists.

    Metrics that come from the same events share all lists except `values`.
    """

    nos: list[int]
    ats: list[str]
    steps: list[int | None]
    epochs: list[float | None]
    values: list[Any]
    has_odd: bool = False

    def point(self, place: int) -> Point:
        return self.values[place], self.nos[place], self.ats[place], self.steps[place], self.epochs[place]

    def highest_step(self, first: int, end: int) -> int | None:
        steps: list[Any] = self.steps[first:end]
        # Nearly always every event has a step, and then max() runs in C.
        return max(steps) if None not in steps else max((step for step in steps if step is not None), default=None)

    @classmethod
    def of(cls, points: Iterable[Point]) -> Column | None:
        """Makes a column from values of any kind. Returns None if none of the values is a point."""
        numbers = [(as_number(value), *origin) for value, *origin in points]
        if not (numeric := [point for point in numbers if point[0] is not None]):
            return None
        values, nos, ats, steps, epochs = map(list, zip(*numeric, strict=True))
        return cls(nos, ats, steps, epochs, values, any(type(value) is str for value in values))


def as_number(value: Any) -> Any:
    """Returns a metric's value as curves store it: a finite number, or a text such as "NaN". Other values give None."""
    if type(value) is int or type(value) is float:
        if -_MOST <= value <= _MOST:
            return value
        return "NaN" if value != value else "Infinity" if value > 0 else "-Infinity"
    return value if type(value) is str and value in NOT_FINITE else None


def _are_numbers(values: Sequence[Any]) -> bool:
    """Returns True only if all values are finite numbers, judged quickly by their types and their sum.

    If finite values overflow in the sum, the answer is False. The caller then looks at each value.
    """
    try:
        return set(map(type, values)) <= {float, int} and -_MOST <= sum(values) <= _MOST
    except OverflowError:
        return False


@dataclass(slots=True)
class _Run:
    """The new events of one attempt that log metrics of the same names, with one list for each field."""

    nos: list[int] = field(default_factory=list)
    ats: list[str] = field(default_factory=list)
    steps: list[int | None] = field(default_factory=list)
    epochs: list[float | None] = field(default_factory=list)
    data: list[dict[str, Any]] = field(default_factory=list)

    def points(self, name: str) -> Iterator[Point]:
        rows = zip(self.data, self.nos, self.ats, self.steps, self.epochs, strict=True)
        return ((data[name], no, at, step, epoch) for data, no, at, step, epoch in rows)


class Gathered:
    """The points of curves in one job's new events."""

    def __init__(self) -> None:
        self._runs: dict[tuple[int, tuple[str, ...]], _Run] = {}

    @property
    def attempts(self) -> set[int]:
        return {attempt for attempt, _ in self._runs}

    def take(self, attempt: int, no: int, at: str, step: int | None, epoch: float | None, data: dict[str, Any]) -> None:
        key = (attempt, tuple(data) if len(data) <= MAX_NAMES_READ else tuple(islice(data, MAX_NAMES_READ)))
        run = self._runs.get(key)
        if run is None:
            run = self._runs[key] = _Run()
        run.nos.append(no)
        run.ats.append(at)
        run.steps.append(step)
        run.epochs.append(epoch)
        run.data.append(data)

    def columns(self) -> Iterator[tuple[int, str, Column]]:
        runs: dict[tuple[int, str], list[_Run]] = {}
        for (attempt, names), run in self._runs.items():
            for name in names:
                runs.setdefault((attempt, name), []).append(run)
        for (attempt, name), runs_of_name in runs.items():
            if column := _column(name, runs_of_name):
                yield attempt, name, column


def _column(name: str, runs: list[_Run]) -> Column | None:
    if len(runs) == 1:
        (run,) = runs
        values = [data[name] for data in run.data]
        if _are_numbers(values):
            return Column(run.nos, run.ats, run.steps, run.epochs, values)
    return Column.of(heapq.merge(*(run.points(name) for run in runs), key=itemgetter(1)))


def keep(conn: Connection, points_by_job: dict[JobId, Gathered]) -> None:
    """Adds new points to the stored curves of their jobs. The caller holds the jobs' locks."""
    attempts = [(job, attempt) for job, points in points_by_job.items() for attempt in points.attempts]
    if not attempts:
        return
    rows = {(row.job_id, row.attempt, row.name): row for row in curves.of_attempts(conn, attempts)}
    counts = Counter((job, attempt) for job, attempt, _ in rows)
    full_buckets: list[BucketRow] = []
    changed_rows: list[CurveRow] = []
    columns = ((job, *column) for job, points in points_by_job.items() for column in points.columns())
    for job, attempt, name, column in columns:
        row = rows.get((job, attempt, name))
        if row is None:
            # The name must fit into a key of the database, and have only characters that can be printed.
            if counts[job, attempt] >= MAX_NAMES or not 0 < len(name) <= MAX_NAME_CHARS or not name.isprintable():
                continue
            counts[job, attempt] += 1
        curve = Curve() if row is None else Curve.read(row.body)
        full_buckets += bucket_rows(job, attempt, name, curve.feed(column))
        changed_rows.append(CurveRow(job, attempt, name, curve.written(), row.until if row else None))
    curves.add(conn, full_buckets)
    curves.save(conn, changed_rows)


def bucket_rows(
    job: JobId, attempt: int, name: str, full_buckets: Iterable[tuple[int, int, Bucket]]
) -> Iterator[BucketRow]:
    for level, place, bucket in full_buckets:
        nos = to_json(_steps_between(bucket.nos)).decode() if level == 1 else None
        yield BucketRow(job, attempt, name, level, place, bucket.reaches, to_json(bucket.written()).decode(), nos)


def _steps_between(nos: list[int]) -> list[int]:
    """Encodes event numbers as the first number and then the differences, which takes a third of the space."""
    return [nos[0], *(after - before for before, after in pairwise(nos))]


def read_nos(text: str) -> list[int]:
    """Returns the event numbers of a bucket from the JSON that `_steps_between` made."""
    return list(accumulate(from_json(text)))
