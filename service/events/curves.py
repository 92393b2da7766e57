"""A metric as a pyramid of buckets, kept as its points come in: drawing ten million of them then reads some hundreds.

    level 0    the points: they are the log and eval events themselves
    level 1    every 64 points are a bucket: its least, its most, the first that is no number, and which events they are
    level 2    every 64 buckets of level 1 are one, and so on

A bucket is written once, when it is full. What grows is the end of each curve: one row, which holds the open bucket of
every level and what the whole curve came to. A curve is one metric of one attempt, so that steps which a later attempt
repeats never mix with those of an earlier one.
"""

from __future__ import annotations

import heapq
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, islice, pairwise
from operator import itemgetter
from typing import Any

from pydantic_core import from_json, to_json
from sqlalchemy import Connection

from footplate.contract.ids import JobId
from service.store import curves
from service.store.curves import BucketRow, CurveRow

FAN = 64
"""Points of a bucket, and buckets of the next one."""
MAX_NAMES = 500
"""Curves of one attempt: names beyond are in the events, and have no curve."""
MAX_TOLD = 1000
"""Of one event's names so many are looked at: one that has fifty thousand must not hold up the others' events."""
MAX_NAME_CHARS = 200
NOT_FINITE = ("NaN", "Infinity", "-Infinity")
_MOST = sys.float_info.max

Point = tuple[Any, int, str, int | None, float | None]
"""Value (a number, or one of NOT_FINITE), no, at, step, epoch."""


@dataclass(slots=True)
class Bucket:
    count: int
    reaches: int | None
    """The highest step."""
    least: Point | None
    """Of those that are numbers."""
    most: Point | None
    odd: Point | None
    """The first that is none."""
    nos: list[int] = field(default_factory=list)

    @classmethod
    def of(cls, column: Column, first: int, behind: int) -> Bucket:
        values = column.values[first:behind]
        numbers, odd = values, None
        if column.has_odd and (found := [place for place, value in enumerate(values) if type(value) is str]):
            numbers, odd = [value for value in values if type(value) is not str], column.point(first + found[0])
        least = most = None
        if numbers:
            least = column.point(first + values.index(min(numbers)))
            most = column.point(first + values.index(max(numbers)))
        return cls(behind - first, column.highest_step(first, behind), least, most, odd, column.nos[first:behind])

    @classmethod
    def read(cls, told: list[Any]) -> Bucket:
        count, reaches, *points = told
        least, most, odd = [point and tuple(point) for point in points]
        return cls(count, reaches, least, most, odd)

    def written(self) -> list[Any]:
        return [self.count, self.reaches, self.least, self.most, self.odd]

    def add(self, later: Bucket) -> None:
        """What came behind it, too. Of equal points the earlier one stays."""
        self.count += later.count
        self.reaches = _highest(self.reaches, later.reaches)
        if later.least is not None and (self.least is None or later.least[0] < self.least[0]):
            self.least = later.least
        if later.most is not None and (self.most is None or later.most[0] > self.most[0]):
            self.most = later.most
        self.odd = self.odd or later.odd


def _highest(one: int | None, other: int | None) -> int | None:
    return other if one is None else one if other is None else max(one, other)


@dataclass(slots=True)
class Curve:
    """The end of one: what it came to so far, and the open bucket of every level."""

    whole: Bucket
    last: Point
    begins: int | None
    """The first step that it was told of."""
    odd: int = 0
    """Points that are no numbers."""
    open: list[Bucket] = field(default_factory=list)

    @classmethod
    def new(cls) -> Curve:
        return cls(_nothing(), (0, 0, "", None, None), None)

    @classmethod
    def read(cls, text: str) -> Curve:
        told = from_json(text)
        levels = [Bucket.read(one) for one in told["open"]]
        levels[0].nos = told["nos"]
        return cls(Bucket.read(told["whole"]), tuple(told["last"]), told["begins"], told["odd"], levels)

    def written(self) -> str:
        told = {
            "whole": self.whole.written(), "last": self.last, "begins": self.begins, "odd": self.odd,
            "open": [one.written() for one in self.open], "nos": self.open[0].nos,
        }  # fmt: skip
        return to_json(told).decode()

    def feed(self, column: Column) -> Iterator[tuple[int, int, Bucket]]:
        """Adds points that came behind all others; yields the buckets that are full now: level, place, bucket."""
        if self.begins is None:
            self.begins = next((step for step in column.steps if step is not None), None)
        if column.has_odd:
            self.odd += sum(type(value) is str for value in column.values)
        self.last = column.point(-1)
        if not self.open:
            self.open.append(_nothing())
        first, end = 0, len(column.values)
        while first < end:
            behind = min(end, first + FAN - self.open[0].count)
            some = Bucket.of(column, first, behind)
            self.whole.add(some)
            self.open[0].add(some)
            self.open[0].nos += some.nos
            first = behind
            if self.open[0].count == FAN:
                yield from self._close()

    def _close(self) -> Iterator[tuple[int, int, Bucket]]:
        level, size = 0, FAN
        while self.open[level].count == size:
            full, self.open[level] = self.open[level], _nothing()
            yield level + 1, self.whole.count // size - 1, full
            level, size = level + 1, size * FAN
            if level == len(self.open):
                self.open.append(_nothing())
            self.open[level].add(full)


def _nothing() -> Bucket:
    return Bucket(0, None, None, None, None)


@dataclass(slots=True)
class Column:
    """Points of one metric, in order. All but the values are shared by the metrics of the same events."""

    nos: list[int]
    ats: list[str]
    steps: list[int | None]
    epochs: list[float | None]
    values: list[Any]
    has_odd: bool = False

    def point(self, place: int) -> Point:
        return self.values[place], self.nos[place], self.ats[place], self.steps[place], self.epochs[place]

    def highest_step(self, first: int, behind: int) -> int | None:
        some: list[Any] = self.steps[first:behind]
        # Nearly always all of them have one, and then this is done by C.
        return max(some) if None not in some else max((step for step in some if step is not None), default=None)

    @classmethod
    def of(cls, points: Iterable[Point]) -> Column | None:
        """Of values that may be anything; None: none of them is a point."""
        told = [(as_number(value), *rest) for value, *rest in points]
        if not (kept := [point for point in told if point[0] is not None]):
            return None
        values, nos, ats, steps, epochs = map(list, zip(*kept, strict=True))
        return cls(nos, ats, steps, epochs, values, any(type(value) is str for value in values))


def as_number(value: Any) -> Any:
    """As a curve has it. A sentence, a list, true: they are in the event, and no points of a curve."""
    if type(value) is int or type(value) is float:
        if -_MOST <= value <= _MOST:
            return value
        return "NaN" if value != value else "Infinity" if value > 0 else "-Infinity"
    return value if type(value) is str and value in NOT_FINITE else None


def _are_numbers(values: Sequence[Any]) -> bool:
    """Whether all are, and finite: found out at the speed of C, because of nearly all of them it is so."""
    try:
        return set(map(type, values)) <= {float, int} and -_MOST <= sum(values) <= _MOST
    except OverflowError:
        return False


class _Run:
    """Events of one attempt that tell the same names."""

    __slots__ = ("ats", "data", "epochs", "nos", "steps")

    def __init__(self) -> None:
        self.nos: list[int] = []
        self.ats: list[str] = []
        self.steps: list[int | None] = []
        self.epochs: list[float | None] = []
        self.data: list[dict[str, Any]] = []

    def points(self, name: str) -> Iterator[Point]:
        rows = zip(self.data, self.nos, self.ats, self.steps, self.epochs, strict=True)
        return ((data[name], no, at, step, epoch) for data, no, at, step, epoch in rows)


class Gathered:
    """The points that one job's new events are."""

    def __init__(self) -> None:
        self._runs: dict[tuple[int, tuple[str, ...]], _Run] = {}

    @property
    def attempts(self) -> set[int]:
        return {attempt for attempt, _ in self._runs}

    def take(self, attempt: int, no: int, at: str, step: int | None, epoch: float | None, data: dict[str, Any]) -> None:
        key = (attempt, tuple(data) if len(data) <= MAX_TOLD else tuple(islice(data, MAX_TOLD)))
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
        for (attempt, name), some in runs.items():
            if column := _column(name, some):
                yield attempt, name, column


def _column(name: str, runs: list[_Run]) -> Column | None:
    if len(runs) == 1:
        (run,) = runs
        values = [data[name] for data in run.data]
        if _are_numbers(values):
            return Column(run.nos, run.ats, run.steps, run.epochs, values)
    return Column.of(heapq.merge(*(run.points(name) for run in runs), key=itemgetter(1)))


def keep(conn: Connection, gathered: dict[JobId, Gathered]) -> None:
    """Adds to every curve what came. The jobs' locks are held, so nobody else does."""
    wanted = [(job, attempt) for job, points in gathered.items() for attempt in points.attempts]
    if not wanted:
        return
    ends = {(row.job_id, row.attempt, row.name): Curve.read(row.body) for row in curves.of_attempts(conn, wanted)}
    names: dict[tuple[JobId, int], int] = {}
    for job, attempt, _ in ends:
        names[job, attempt] = names.get((job, attempt), 0) + 1
    full: list[BucketRow] = []
    changed: list[CurveRow] = []
    for job, attempt, name, column in _each(gathered):
        curve = ends.get((job, attempt, name))
        if curve is None:
            count = names.get((job, attempt), 0)
            if count >= MAX_NAMES or not _is_drawable(name):
                continue
            curve, names[job, attempt] = Curve.new(), count + 1
        full += bucket_rows(job, attempt, name, curve.feed(column))
        changed.append(CurveRow(job, attempt, name, curve.written()))
    curves.add(conn, full)
    if changed:
        curves.save(conn, changed)


def _each(gathered: dict[JobId, Gathered]) -> Iterator[tuple[JobId, int, str, Column]]:
    for job, points in gathered.items():
        for attempt, name, column in points.columns():
            yield job, attempt, name, column


def _is_drawable(name: str) -> bool:
    """Whether a database takes it in a key, and a person could name it."""
    return 0 < len(name) <= MAX_NAME_CHARS and name.isprintable()


def bucket_rows(job: JobId, attempt: int, name: str, full: Iterable[tuple[int, int, Bucket]]) -> Iterator[BucketRow]:
    for level, place, bucket in full:
        nos = to_json(_steps_between(bucket.nos)).decode() if level == 1 else None
        yield BucketRow(job, attempt, name, level, place, bucket.reaches, to_json(bucket.written()).decode(), nos)


def _steps_between(nos: list[int]) -> list[int]:
    """The first, and how far each lies behind the one before: written, a third as long."""
    return [nos[0], *(after - before for before, after in pairwise(nos))]


def read_nos(told: str) -> list[int]:
    """What `_steps_between` wrote."""
    return list(accumulate(from_json(told)))
