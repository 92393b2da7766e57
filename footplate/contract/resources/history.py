"""Resources of a job's history: events, metrics and curves, printed lines, and attempts."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, WithJsonSchema

from footplate.contract.events import Event, Failure
from footplate.contract.fields import Json, OpenEnum, Page, Resource

Measured = Annotated[float, WithJsonSchema({"anyOf": [{"type": "number"}, {"type": "string"}]})]
"""A number. NaN and infinities are strings in JSON: "NaN", "Infinity", "-Infinity"."""


class EventList(Resource):
    data: tuple[Event, ...]
    next_cursor: str | None
    """The value of `after` for the next page. null: there are no more events now."""
    last: int
    """The number of the newest event that was searched for this answer. Poll with after=last."""


class Metric(BaseModel):
    model_config = ConfigDict(extra="allow")

    no: int
    step: int | None
    epoch: float | None


class MetricList(Page[Metric]):
    last: int


class SeenMetric(Resource):
    """A value of a metric, and where the job logged it."""

    value: Measured
    """"NaN", "Infinity" and "-Infinity" are strings."""
    no: int
    step: int | None
    epoch: float | None
    at: str
    attempt: int


class MetricSummary(Resource):
    name: str
    count: int
    not_finite: int
    """The number of points that are not finite. They count for neither `min` nor `max`."""
    last: SeenMetric
    min: SeenMetric | None
    max: SeenMetric | None


class MetricSummaryList(Page[MetricSummary]): ...


class SeriesAttempt(Resource):
    attempt: int
    first: int
    """The index of the attempt's first point in x and y."""


class Series(Resource):
    """A curve of one metric: `plot(series.x, series.y)`."""

    job: str
    name: str
    count: int
    """The number of points that the job logged."""
    left_out: int
    """The number of points that are not shown because a later attempt repeats their steps."""
    exact: bool
    """True if x and y have every point that is not left out. False if the curve is reduced to some points of each
    stretch, which include the stretch's least and greatest value."""
    attempts: tuple[SeriesAttempt, ...]
    x: tuple[int | float | str, ...]
    y: tuple[Measured, ...]
    steps: tuple[int | None, ...] | None = None
    """The step of each point, if x is the time or the epoch. None if x is the step."""


class SeriesList(Resource):
    x: Annotated[str, OpenEnum(Literal["step", "time", "epoch"])]
    data: tuple[Series, ...]
    next_cursor: str | None


class Line(Resource):
    """A line that training printed."""

    no: int
    at: str
    attempt: int
    rank: int
    stream: str
    text: str


class LineList(Resource):
    data: tuple[Line, ...]
    next_cursor: str | None
    """The value of `after` for the next page. There may be a next page although this page is empty."""
    last: int


class AttemptNode(Resource):
    id: str
    name: str
    slots: int
    gpus: tuple[str, ...]
    events: int


class Attempt(Resource):
    attempt: int
    ending: str | None
    """The way in which the attempt ended: finished, stopped, failed, lost or withdrawn. null if it has not ended."""
    reason: str | None
    placed_at: str
    claimed_at: str | None
    running_at: str | None
    ended_at: str | None
    running_s: float
    error: Failure | None
    result: Json | None
    nodes: tuple[AttemptNode, ...]


class AttemptList(Page[Attempt]): ...
