"""Makes curves for charts, with at most as many points as requested. All points are logged values, spikes included.

A longer curve is divided into groups of equally many points. From each group, the curve shows the lowest point, the
highest, and the first that is not a number. Groups consist of the buckets that ingest keeps
(service/events/curves.py), of the highest level that is fine enough. So the time does not depend on the number of
points.

A job that continues from an older checkpoint logs some steps twice. Points of an earlier attempt after that checkpoint,
or from the first step that a later attempt logged, no longer count. `everything` shows all.

A range of steps is read with finer buckets, so a chart that is zoomed in shows more points than the whole curve has.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from pydantic_core import from_json
from sqlalchemy import Connection

from footplate.contract.ids import JobId
from footplate.contract.resources.history import MetricSummary, SeenMetric, Series, SeriesAttempt
from service.events.curves import FAN, Curve, Point, as_number, read_nos
from service.store import curves
from service.store.curves import BucketRange

Axis = Literal["step", "time", "epoch"]
_PLACES: dict[Axis, int] = {"time": 2, "step": 3, "epoch": 4}
"""The index of each axis in a Point."""
BUCKETS_AT_ONCE = 64
"""The most buckets that one call of the JSON parser reads, because other threads wait for the interpreter meanwhile."""
Group = tuple[int, Point | None, Point | None, Point | None]
"""Consecutive points: their number, the lowest, the highest, and the first that is not a number."""


@dataclass(frozen=True, slots=True)
class Steps:
    """A range of steps. None: the range has no end on this side."""

    first: int | None = None
    last: int | None = None


ALL_STEPS = Steps()


def summaries(conn: Connection, job: JobId) -> list[MetricSummary]:
    """Returns a summary of each metric of a job, sorted by name. Metrics of which no point counts are left out."""
    stored_curves = _stored_curves(conn, job)
    events = _Events(conn, job)
    by_name: dict[str, list[_CurvePiece]] = {}
    for (attempt, name), (curve, before) in stored_curves.items():
        by_name.setdefault(name, []).append(_CurvePiece(conn, events, attempt, name, curve, before, ALL_STEPS))
    return [_summary(name, by_name[name]) for name in sorted(by_name) if any(piece.count for piece in by_name[name])]


def _summary(name: str, pieces: Sequence[_CurvePiece]) -> MetricSummary:
    """Returns the summary of one metric. `pieces` has the part of each attempt, oldest first."""

    def seen_metric(point: Point, attempt: int) -> SeenMetric:
        value, no, at, step, epoch = point
        return SeenMetric(value=value, no=no, step=step, epoch=epoch, at=at, attempt=attempt)

    drawable = [piece for piece in pieces if piece.count]
    extremes = [(*piece.extremes(), piece.attempt) for piece in drawable]
    lowest_points = [(low, attempt) for low, _, attempt in extremes if low is not None]
    highest_points = [(high, attempt) for _, high, attempt in extremes if high is not None]
    return MetricSummary(
        name=name,
        count=sum(piece.curve.summary.count for piece in pieces),
        not_finite=sum(piece.curve.odd for piece in pieces),
        last=seen_metric(drawable[-1].last(), drawable[-1].attempt),
        # If several attempts have the same lowest or highest value, the earliest attempt counts.
        min=seen_metric(*min(lowest_points, key=lambda entry: entry[0][0])) if lowest_points else None,
        max=seen_metric(*max(highest_points, key=lambda entry: entry[0][0])) if highest_points else None,
    )


def series(
    conn: Connection,
    job: JobId,
    names: Sequence[str],
    points: int,
    axis: Axis = "step",
    everything: bool = False,
    steps: Steps = ALL_STEPS,
) -> list[Series]:
    """Returns curves in the order of the names, with the points of these steps. A curve without points is empty."""
    stored_curves = _stored_curves(conn, job)
    events = _Events(conn, job)
    all_series = []
    for name in names:
        pieces = [
            _CurvePiece(conn, events, attempt, name, curve, None if everything else before, steps)
            for (attempt, curve_name), (curve, before) in stored_curves.items()
            if curve_name == name
        ]
        all_series.append(_draw(job, name, pieces, points, axis))
    return all_series


def names_of(conn: Connection, job: JobId) -> list[str]:
    return sorted({row.name for row in curves.of_job(conn, job)})


def _stored_curves(conn: Connection, job: JobId) -> dict[tuple[int, str], tuple[Curve, int | None]]:
    """Returns curves by attempt and name, each with the first step that no longer counts, or None if all count."""
    rows = [(row, Curve.read(row.body)) for row in curves.of_job(conn, job)]
    begins = _next_begins((row.attempt, curve) for row, curve in rows)
    return {
        (row.attempt, row.name): (curve, _lower(begins[row.attempt], None if row.until is None else row.until + 1))
        for row, curve in rows
    }


def _next_begins(curves: Iterable[tuple[int, Curve]]) -> dict[int, int | None]:
    """Returns, for each attempt, the lowest step that a later attempt logged, or None if no later one logged a step."""
    first: dict[int, int | None] = {}
    for attempt, curve in curves:
        first[attempt] = _lower(first.get(attempt), curve.begins)
    lowest: int | None = None
    lowest_later: dict[int, int | None] = {}
    for attempt in sorted(first, reverse=True):
        lowest_later[attempt], lowest = lowest, _lower(lowest, first[attempt])
    return lowest_later


def _lower(*steps: int | None) -> int | None:
    return min((step for step in steps if step is not None), default=None)


def _draw(job: JobId, name: str, pieces: Sequence[_CurvePiece], points: int, axis: Axis) -> Series:
    """Returns the curve of a metric. Points that lack a value on this axis are left out."""
    place = _PLACES[axis]
    point_count = sum(piece.count for piece in pieces)
    # A group is drawn with two points, or with three if some values are not finite. The curve's ends add two points.
    groups = (points - 2) // (3 if any(piece.curve.odd for piece in pieces) else 2)
    attempts: list[SeriesAttempt] = []
    xs: list[Any] = []
    ys: list[Any] = []
    steps: list[int | None] = []
    for piece in pieces:
        if piece.count:
            attempts.append(SeriesAttempt(attempt=piece.attempt, first=len(xs)))
            few = max(1, groups * piece.count // point_count - 1)
            visible_points = piece.exactly() if point_count <= points else piece.in_groups(few)
            drawn_points = [point for point in visible_points if point[place] is not None]
            xs += [point[place] for point in drawn_points]
            ys += [point[0] for point in drawn_points]
            steps += [point[3] for point in drawn_points]
    return Series(
        job=job, name=name, count=sum(piece.curve.summary.count for piece in pieces),
        left_out=sum(piece.left_out for piece in pieces), exact=point_count <= points, attempts=tuple(attempts),
        x=tuple(xs), y=tuple(ys), steps=None if axis == "step" else tuple(steps),
    )  # fmt: skip


class _CurvePiece:
    """The points of one attempt's curve that count, and that are in a range of steps."""

    def __init__(
        self, conn: Connection, events: _Events, attempt: int, name: str, curve: Curve, before: int | None, steps: Steps
    ) -> None:
        self._conn, self._events = conn, events
        self.attempt, self._name, self.curve = attempt, name, curve
        self._until = curve.summary.count if before is None else self._place_of(before)
        self.left_out = curve.summary.count - self._until
        if steps.last is not None:
            self._until = min(self._until, self._place_of(steps.last + 1))
        self._first = 0 if steps.first is None else min(self._until, self._place_of(steps.first))

    @property
    def count(self) -> int:
        return self._until - self._first

    def last(self) -> Point:
        return self.curve.last if self._is_whole else self._points(self._until - 1, self._until)[0]

    def extremes(self) -> tuple[Point | None, Point | None]:
        """Returns the lowest and the highest point that are numbers."""
        if self._is_whole:
            return self.curve.summary.least, self.curve.summary.most
        ((_, least, most, _),) = _grouped(self._buckets(len(self.curve.open), 0, self._until), self.count)
        return least, most

    @property
    def _is_whole(self) -> bool:
        return self.count == self.curve.summary.count

    def exactly(self) -> list[Point]:
        return self._points(self._first, self._until)

    def in_groups(self, groups: int) -> list[Point]:
        """Divides the points into at most `groups` groups, and returns the points to show, in order.

        The first and the last point are always among them.
        """
        level = 0
        # A quarter of the requested groups still shows all that can be seen. A finer level would read up to 64 times as
        # much.
        while self.count / FAN ** (level + 1) >= groups / 4:
            level += 1
        all_groups = _grouped(self._buckets(level, self._first, self._until), self.count / groups)
        points = {point[1]: point for _, *group_points in all_groups for point in group_points if point is not None}
        ends = (*self._points(self._first, self._first + 1), *self._points(self._until - 1, self._until))
        points |= {point[1]: point for point in ends}
        return [points[no] for no in sorted(points)]

    def _buckets(self, level: int, first: int, until: int) -> Iterator[Group]:
        """Yields the buckets of this level between two points, in order.

        Points at either end that do not fill a bucket of this level come in smaller buckets.
        """
        if level == 0:
            for point in self._points(first, until):
                is_odd = type(point[0]) is str
                yield (1, None, None, point) if is_odd else (1, point, point, None)
            return
        size = FAN**level
        start, end = -(-first // size), until // size
        if start >= end:
            yield from self._buckets(level - 1, first, until)
            return
        yield from self._buckets(level - 1, first, start * size)
        bodies = curves.bodies(self._conn, self._stretch(level, start, end))
        for at in range(0, len(bodies), BUCKETS_AT_ONCE):
            # One call for many buckets takes a fifth of the time of a call for each.
            for count, _, least, most, odd in from_json(f"[{','.join(bodies[at : at + BUCKETS_AT_ONCE])}]"):
                yield count, least, most, odd
        yield from self._buckets(level - 1, end * size, until)

    def _points(self, first: int, until: int) -> list[Point]:
        """Returns the points from index `first` to before `until`, read from their events."""
        start, end = first // FAN, -(-until // FAN)
        nos = [no for text in curves.nos(self._conn, self._stretch(1, start, end)) for no in read_nos(text)]
        nos += self.curve.open[0].nos
        return self._events.points(self._name, nos[first - start * FAN : until - start * FAN])

    def _place_of(self, step: int) -> int:
        """Returns the number of points before the first point at `step` or a later step."""
        summary = self.curve.summary
        if summary.reaches is None or summary.reaches < step:
            return summary.count
        first, until = 0, summary.count
        for level in range(len(self.curve.open), 0, -1):
            size = FAN**level
            where = self._stretch(level, first // size, until // size)
            place = curves.first_that_reaches(self._conn, where, step)
            if place is None:
                first = where.end * size
            else:
                first, until = place * size, (place + 1) * size
        points = self._points(first, until)
        places_reached = (place for place, point in enumerate(points) if point[3] is not None and point[3] >= step)
        return first + next(places_reached, len(points))

    def _stretch(self, level: int, first: int, until: int) -> BucketRange:
        return BucketRange(self._events.job, self.attempt, self._name, level, first, until)


def _grouped(buckets: Iterable[Group], share: float) -> Iterator[Group]:
    """Yields groups of consecutive buckets with at least `share` points each. Of equal values, the first is shown."""
    count, least, most, odd = 0, None, None, None
    for more, low, high, strange in buckets:
        count += more
        if low is not None and (least is None or low[0] < least[0]):
            least = low
        if high is not None and (most is None or high[0] > most[0]):
            most = high
        odd = odd or strange
        if count >= share:
            yield count, least, most, odd
            count, least, most, odd = 0, None, None, None
    if count:
        yield count, least, most, odd


class _Events:
    """The events of a job's points, which are read once for all metrics of the event."""

    def __init__(self, conn: Connection, job: JobId) -> None:
        self._conn, self.job = conn, job
        self._events_by_no: dict[int, tuple[str, int | None, float | None, dict[str, Any]]] = {}

    def points(self, name: str, nos: Sequence[int]) -> list[Point]:
        if missing_nos := [no for no in nos if no not in self._events_by_no]:
            for no, (at, step, epoch, data) in curves.points(self._conn, self.job, missing_nos).items():
                # The faster parser refuses half a surrogate pair, which a note beside the metric may hold.
                self._events_by_no[no] = at, step, epoch, json.loads(data)
        rows = ((no, *self._events_by_no[no]) for no in nos)
        return [(as_number(data[name]), no, at, step, epoch) for no, at, step, epoch, data in rows]
