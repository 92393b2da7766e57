"""Shows a watched job on a terminal: events scroll, and the lowest lines show the progress bar and the curves."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn
from rich.table import Table
from rich.text import Text

from footplate.cli.event_lines import line_of
from footplate.cli.text import clean, duration, metric_order, number, sparkline

if TYPE_CHECKING:
    from footplate import Job
    from footplate.contract.events import Event

MOST_CURVES = 8
MOST_POINTS = 4096
"""The largest number of points of a curve. Beyond that, every second point is dropped."""
LEAST_WIDTH, MOST_WIDTH = 8, 48
BESIDE_CURVE = 32
"""The columns of the terminal that a metric's name and value need."""
DRAWN_HZ = 8


class Screen:
    """Shows a job's events on a terminal. Events are printed as lines, above a progress bar and curves that change."""

    def __init__(self, job: Job) -> None:
        self._console = Console(highlight=False, soft_wrap=True)
        self._bar = Progress(
            BarColumn(bar_width=24),
            TaskProgressColumn(),
            TextColumn("step {task.completed:.0f}/{task.total:.0f}{task.fields[left]}"),
            console=self._console,
        )
        self._task = self._bar.add_task("", total=None, visible=False, left="")
        self._curves: dict[str, list[float]] = {}
        self._values: dict[str, object] = dict(job.info.metrics)
        self._live = Live(
            console=self._console, refresh_per_second=DRAWN_HZ, transient=True, get_renderable=self._rendered
        )
        if (progress := job.info.progress) is not None:
            self._move_bar(progress.step, progress.max_steps, progress.eta_s)
            for name, curve in job.metrics.series(points=4 * MOST_WIDTH).items():
                self._curves[name] = [value for value in curve.y if math.isfinite(value)]
        # Drawn once before the drawing thread starts, or a line printed at the same time would continue the bar.
        self._live.start(refresh=True)

    def show(self, event: Event) -> None:
        data = event.data
        if event.kind == "progress":
            self._move_bar(data.get("step"), data.get("max_steps"), data.get("eta_s"))
        if event.kind in ("log", "eval"):
            self._add_points(data)
        if event.kind != "log" and (text := line_of(event)):
            self._console.print(Text(clean(text), style=_STYLES.get(event.kind, "")))

    def close(self) -> None:
        """Stops drawing, and prints the curves a last time, so that they stay on the terminal."""
        if self._live.is_started:
            self._live.stop()
            if self._curves:
                self._console.print(self._table())

    def _move_bar(self, step: int | None, max_steps: int | None, eta_s: float | None) -> None:
        time_left = f", about {duration(eta_s)} left" if eta_s else ""
        self._bar.update(self._task, completed=step, total=max_steps, visible=bool(max_steps), left=time_left)

    def _add_points(self, data: dict[str, Any]) -> None:
        self._values |= data
        for name, value in data.items():
            if isinstance(value, int | float) and math.isfinite(value):
                points = self._curves.setdefault(name, [])
                points.append(value)
                if len(points) > MOST_POINTS:
                    del points[::2]

    def _rendered(self) -> Group:
        return Group(self._table(), self._bar)

    def _table(self) -> Table:
        table = Table.grid(padding=(0, 2))
        table.add_column(no_wrap=True, overflow="ellipsis")
        table.add_column(no_wrap=True, justify="right")
        table.add_column(no_wrap=True, overflow="crop")
        width = max(LEAST_WIDTH, min(MOST_WIDTH, self._console.width - BESIDE_CURVE))
        for name in sorted(self._curves, key=metric_order)[:MOST_CURVES]:
            value = self._values.get(name, self._curves[name][-1])
            table.add_row(Text(clean(name)), number(value), Text(sparkline(self._curves[name], width), style="cyan"))
        return table


_STYLES = {"state": "bold", "line": "dim", "checkpoint": "green", "note": "yellow", "gap": "red"}
