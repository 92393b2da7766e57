"""Shows jobs in a notebook: tables, a live cell, and plots with matplotlib."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from html import escape
from importlib import import_module
from typing import TYPE_CHECKING, Any

from footplate.contract.errors import FootplateError
from footplate.sdk.row_reports import COLUMN_HEADS, column_cells

if TYPE_CHECKING:
    from footplate.sdk.jobs import JobView
    from footplate.sdk.models import Checkpoint, Event, Series, UploadedFile

SHOWN_METRICS = 8
REDRAW_SECONDS = 0.5


class PackageMissing(FootplateError):
    code = "package_missing"
    title = "A package is not installed"


def optional(package: str, purpose: str) -> Any:
    """Imports an optional package. If it is not installed, the error names the `purpose` and the install command."""
    try:
        return import_module(package)
    except ImportError as error:
        name = package.partition(".")[0]
        raise PackageMissing(
            f"{purpose} needs {name}, which is not installed here", hint=f"pip install {name}, or footplate[notebook]"
        ) from error


def html_table(heads: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Returns an HTML table. Every text is escaped, because names and metrics come from users."""
    head = "".join(f"<th>{escape(text)}</th>" for text in heads)
    body = "".join("<tr>" + "".join(f"<td>{escape(_text(cell))}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _text(value: object) -> str:
    if value is None:
        return ""
    return f"{value:.5g}" if isinstance(value, float) else str(value)


def _step(job: JobView) -> str:
    return job.progress.steps_text(" of ") if job.progress else ""


def job_table(jobs: Sequence[JobView]) -> str:
    rows = [(job.id, job.name, job.state, job.reason, _step(job), job.info.created_at) for job in jobs]
    return html_table(("id", "name", "state", "reason", "step", "created"), rows)


def job_card(job: JobView) -> str:
    """Returns an HTML table with the facts of one job, its newest metrics, and its error if it failed."""
    rows: list[tuple[str, object]] = [("id", job.id), ("name", job.name), ("state", job.state), ("reason", job.reason)]
    if step := _step(job):
        rows.append(("step", step))
    rows += list(job.info.metrics.items())[:SHOWN_METRICS]
    if job.error is not None:
        rows += [("error", job.error.message), ("what to do", job.error.hint)]
    return html_table(("job", ""), [row for row in rows if row[1] not in (None, "")])


def checkpoint_table(checkpoints: Sequence[Checkpoint]) -> str:
    heads = ("id", "step", "status", "MB", "best", "pinned")
    rows = [
        (row.id, row.step, row.status, round(row.bytes / 1e6, 1), "yes" if row.is_best else "", row.pinned or "")
        for row in checkpoints
    ]
    return html_table(heads, rows)


def file_card(file: UploadedFile) -> str:
    """Returns HTML tables with the facts of an uploaded file, its columns and its first bad rows."""
    facts: list[tuple[str, object]] = [("id", file.id), ("rows", file.rows), ("bad rows", file.bad_rows)]
    if file.report is None:
        return html_table((file.name, ""), facts)
    facts += [(f"row {bad_row.number}", bad_row.problem) for bad_row in file.report.first_bad]
    facts += [("note", note) for note in file.report.notes]
    return html_table((file.name, ""), facts) + html_table(COLUMN_HEADS, map(column_cells, file.report.columns))


class LiveCell:
    """Shows a running job in a notebook cell, and updates this cell. Outside of a notebook, prints lines."""

    def __init__(self, job: JobView) -> None:
        self._state, self._metrics, self._step, self._max_steps = job.state, dict[str, object](), 0, 0
        self._head = job.name or job.id
        self._drawn_at, self._cell = 0.0, _notebook_cell()

    def show(self, event: Event) -> None:
        if event.kind == "progress":
            self._step, self._max_steps = event.data.get("step", 0), event.data.get("max_steps", 0)
        elif event.kind in ("log", "eval"):
            self._metrics |= event.data
            self._step = event.step or self._step
            self._print(
                f"step {event.step}  " + "  ".join(f"{name} {_text(value)}" for name, value in event.data.items())
            )
        elif event.kind == "state":
            self._state = str(event.data.get("state"))
            self._print(self._state)
        if self._cell is not None and time.monotonic() - self._drawn_at >= REDRAW_SECONDS:
            self.draw()

    def draw(self) -> None:
        if self._cell is not None:
            self._drawn_at = time.monotonic()
            self._cell.update({"text/html": self._html(), "text/plain": f"{self._head} {self._state}"}, raw=True)

    def _html(self) -> str:
        progress_bar = f'<progress max="{self._max_steps}" value="{self._step}"></progress>' if self._max_steps else ""
        rows = [("state", self._state), ("step", self._step), *list(self._metrics.items())[:SHOWN_METRICS]]
        return html_table((self._head, ""), rows) + progress_bar

    def _print(self, line: str) -> None:
        if self._cell is None:
            print(line, flush=True)


def _notebook_cell() -> Any:
    """Returns IPython's handle by which a cell's output can be updated, or None outside of a notebook."""
    try:
        from IPython import get_ipython
        from IPython.display import display
    except ImportError:
        return None
    if get_ipython() is None:
        return None
    return display({"text/plain": ""}, raw=True, display_id=True)


def plot(curves: Sequence[Series], names_of_jobs: dict[str, str], x: str, axes: Any) -> Any:
    """Draws curves with matplotlib, one colour per curve, and returns the axes."""
    figure_axes = axes if axes is not None else optional("matplotlib.pyplot", "plot()").subplots()[1]
    for curve in curves:
        label = curve.name if len(names_of_jobs) == 1 else f"{names_of_jobs[curve.job]} {curve.name}"
        figure_axes.plot(curve.x, curve.y, label=label)
    figure_axes.set_xlabel(x)
    if curves:
        figure_axes.legend()
    return figure_axes
