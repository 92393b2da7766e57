"""The asynchronous operations on a job's metrics and on the lines that it printed."""

from __future__ import annotations

import math
from collections.abc import AsyncGenerator, Callable, Collection
from typing import Any

from footplate.contract.name_list import join_names
from footplate.sdk.lists import Rows
from footplate.sdk.models import Event, Line, MetricSummary, Series
from footplate.sdk.request import ApiRequest, all_resources, paged, read, send_for_page
from footplate.sdk.wire import Wire

ROWS_PER_PAGE = 1000
Follow = Callable[[int], AsyncGenerator[Event, None]]
_FLOATS = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


class AsyncMetrics:
    """A job's metrics.

    `await job.metrics()` returns every row. `summary` and `series` are fast for any number of rows.
    """

    def __init__(self, wire: Wire, job: str) -> None:
        self._wire, self._path = wire, f"{job}/metrics"

    async def __call__(self, *, after: int = 0) -> Rows:
        """Returns a row per log or eval: {"no", "step", "epoch", "loss", …}. `.to_pandas()` makes a data frame."""
        return Rows([with_floats(row) async for row in rows_after(self._wire, self._path, after)])

    async def summary(self) -> dict[str, MetricSummary]:
        """Returns the last, the lowest and the highest value of each metric, with their steps."""
        summaries = await all_resources(MetricSummary, self._wire, f"{self._path}/summary")
        return {summary.name: summary for summary in summaries}

    async def series(
        self,
        *names: str,
        x: str = "step",
        points: int = 1000,
        everything: bool = False,
        first_step: int | None = None,
        last_step: int | None = None,
    ) -> dict[str, Series]:
        """Returns the curves of the named metrics, or of all metrics. A curve has at most `points` points.

        Spikes are among the points. `x` is step, time or epoch. With `everything`, a curve also has the points of steps
        that a later attempt has repeated. `first_step` and `last_step` limit the curves to a range of steps, whose
        points are then closer together.
        """
        params = series_params(names, x, points, everything, first_step, last_step)
        curves = await all_resources(Series, self._wire, f"{self._path}/series", **params)
        return {curve.name: curve for curve in curves}


def series_params(
    names: Collection[str], x: str, points: int, everything: bool, first_step: int | None, last_step: int | None
) -> dict[str, Any]:
    return {
        "names": join_names(names) or None, "x": x, "points": points, "everything": "true" if everything else None,
        "first_step": first_step, "last_step": last_step,
    }  # fmt: skip


async def printed_lines(
    wire: Wire, job: str, follow: Follow | None, after: int, **filters: Any
) -> AsyncGenerator[Line, None]:
    """Yields the lines that a job has printed, and with `follow` also new lines."""
    last_no = after
    while True:
        params = {"after": last_no, "limit": ROWS_PER_PAGE, **filters}
        page = await send_for_page(wire, ApiRequest("GET", f"{job}/logs", params=params))
        for row in page["data"]:
            yield read(Line, row)
        last_no = page["last"]
        if page["next_cursor"] is None:
            break
    if follow is None:
        return
    async for event in follow(last_no):
        line = Line.model_validate({**event.data, **event.model_dump(include={"no", "at", "attempt", "rank"})})
        if _matches(line, **filters):
            yield line


def _matches(line: Line, stream: str | None, rank: int | None, grep: str | None) -> bool:
    return stream in (None, line.stream) and rank in (None, line.rank) and (grep is None or grep in line.text)


def rows_after(wire: Wire, path: str, after: int, **params: Any) -> AsyncGenerator[dict[str, Any], None]:
    """Yields the rows of a list whose event number `no` is greater than `after`."""
    return paged(wire, path, cursor_name="after", after=after, limit=ROWS_PER_PAGE, **params)


def with_floats(row: dict[str, Any]) -> dict[str, Any]:
    """Converts texts such as "NaN" to floats, because JSON has no NaN."""
    return {name: _FLOATS.get(value, value) if isinstance(value, str) else value for name, value in row.items()}
