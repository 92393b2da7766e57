"""What a job has told: events, metrics and curves, lines, and its attempts."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict

from footplate.contract.events import Failure, Kind
from service.api.shapes.shape import Json, Shape


class Event(Shape):
    v: Literal[1]
    job: str
    no: int
    """Dense per job; the cursor."""
    attempt: int
    source: int
    seq: int
    rank: int
    kind: Kind
    at: str
    step: int | None
    epoch: float | None
    data: Json


class EventList(Shape):
    data: list[Event]
    next_cursor: str | None
    """What `after` takes to read on; null: there is no more now."""
    last: int
    """How far this answer goes. Poll with after=last."""


class Metric(BaseModel):
    model_config = ConfigDict(extra="allow")

    no: int
    step: int | None
    epoch: float | None


class MetricList(Shape):
    data: list[Metric]
    next_cursor: str | None
    last: int


class SeenMetric(Shape):
    value: float | str
    """"NaN", "Infinity" and "-Infinity" are strings."""
    no: int
    step: int | None
    epoch: float | None
    at: str
    attempt: int
    repeated: bool
    """A later attempt told of this step again."""


class MetricSummary(Shape):
    name: str
    count: int
    not_finite: int
    """Points that are no finite number: they are neither least nor most."""
    last: SeenMetric
    min: SeenMetric | None
    max: SeenMetric | None


class MetricSummaryList(Shape):
    data: list[MetricSummary]
    next_cursor: str | None


class SeriesAttempt(Shape):
    attempt: int
    first: int
    """The index in x and y of its first point."""


class Series(Shape):
    job: str
    name: str
    count: int
    """Points that the job has told."""
    left_out: int
    """Those that a later attempt repeats, and that are not shown therefore."""
    exact: bool
    """Every other point is here; else some of each stretch, its least and its most among them."""
    attempts: list[SeriesAttempt]
    x: list[int | float | str]
    y: list[float | str]


class SeriesList(Shape):
    x: Literal["step", "time", "epoch"]
    data: list[Series]
    next_cursor: str | None


class Line(Shape):
    no: int
    at: str
    attempt: int
    rank: int
    stream: str
    text: str


class LineList(Shape):
    data: list[Line]
    next_cursor: str | None
    """What `after` takes to look on; there may be one although this page is empty."""
    last: int


class AttemptNode(Shape):
    id: str
    name: str
    slots: int
    gpus: list[str]
    events: int


class Attempt(Shape):
    attempt: int
    ending: str | None
    """finished, stopped, failed, lost or withdrawn; null: it is open."""
    reason: str | None
    placed_at: str
    claimed_at: str | None
    running_at: str | None
    ended_at: str | None
    running_s: float
    error: Failure | None
    result: Json | None
    nodes: list[AttemptNode]


class AttemptList(Shape):
    data: list[Attempt]
    next_cursor: str | None
