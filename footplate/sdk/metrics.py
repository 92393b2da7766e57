"""What a job has told, asynchronously: its metrics as rows and as curves, and what it printed."""

from __future__ import annotations

import math
from collections.abc import AsyncGenerator, Callable, Collection
from typing import Any

from footplate.sdk.models import Event, Line, MetricSummary, Series
from footplate.sdk.request import Ask, ask_json
from footplate.sdk.waiting import Wire

PAGE = 1000
Follow = Callable[[int], AsyncGenerator[Event, None]]
_FLOATS = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


class AsyncMetrics:
    """`await job.metrics()` has every row; `summary` and `series` answer as quickly however many there are."""

    def __init__(self, wire: Wire, job: str) -> None:
        self._wire, self._path = wire, f"{job}/metrics"

    async def __call__(self, *, after: int = 0) -> list[dict[str, Any]]:
        """A row per log or eval: {"no", "step", "epoch", "loss", …}, as a data frame takes them."""
        return [with_floats(row) async for row in pages(self._wire, self._path, after)]

    async def summary(self) -> dict[str, MetricSummary]:
        """By name: the last, the least and the most value, and where each was."""
        told = await ask_json(self._wire, Ask("GET", f"{self._path}/summary"))
        return {one["name"]: MetricSummary.model_validate(one) for one in told["data"]}

    async def series(
        self, *names: str, x: str = "step", points: int = 1000, everything: bool = False
    ) -> dict[str, Series]:
        """By name: at most so many points of each curve, every spike among them; without names, every curve. x is step,
        time or epoch. `everything` has what a later attempt repeats, too."""
        params = _asked(names, x, points, everything)
        return {one.name: one for one in await _series(self._wire, f"{self._path}/series", params)}


async def series_of(
    wire: Wire, jobs: Collection[str], names: Collection[str], x: str, points: int, everything: bool
) -> list[Series]:
    """Curves of several jobs, job by job."""
    return await _series(wire, "/metrics/series", {"jobs": ",".join(jobs), **_asked(names, x, points, everything)})


def _asked(names: Collection[str], x: str, points: int, everything: bool) -> dict[str, Any]:
    return {"names": ",".join(names) or None, "x": x, "points": points, "everything": "true" if everything else None}


async def _series(wire: Wire, path: str, params: dict[str, Any]) -> list[Series]:
    told = await ask_json(wire, Ask("GET", path, params=params))
    return [Series.model_validate(one) for one in told["data"]]


async def lines(wire: Wire, job: str, follow: Follow | None, after: int, **wanted: Any) -> AsyncGenerator[Line, None]:
    """What there is, and with `follow` what comes behind it."""
    last = after
    while True:
        params = {"after": last, "limit": PAGE, **wanted}
        page = await ask_json(wire, Ask("GET", f"{job}/logs", params=params))
        for one in page["data"]:
            yield Line.model_validate(one)
        last = page["last"]
        if page["next_cursor"] is None:
            break
    if follow is None:
        return
    async for event in follow(last):
        line = Line.model_validate({**event.data, **event.model_dump(include={"no", "at", "attempt", "rank"})})
        if _is_wanted(line, **wanted):
            yield line


def _is_wanted(line: Line, stream: str | None, rank: int | None, grep: str | None) -> bool:
    return stream in (None, line.stream) and rank in (None, line.rank) and (grep is None or grep in line.text)


async def pages(wire: Wire, path: str, after: int, **params: Any) -> AsyncGenerator[dict[str, Any], None]:
    """The rows of a list that is read by `no`."""
    while True:
        page = await ask_json(wire, Ask("GET", path, params={"after": after, "limit": PAGE, **params}))
        for row in page["data"]:
            yield row
        if page["next_cursor"] is None:
            return
        after = int(page["next_cursor"])


def with_floats(row: dict[str, Any]) -> dict[str, Any]:
    """JSON has no NaN: they travel as text."""
    return {name: _FLOATS.get(value, value) if isinstance(value, str) else value for name, value in row.items()}
