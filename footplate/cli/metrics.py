"""The verb `metrics`: prints a job's metrics as a table with curves, as JSON or CSV, or draws them to an image file."""

from __future__ import annotations

import csv
import math
import sys
import time
from collections.abc import Sequence
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from footplate.cli.context import (
    JOB_HELP,
    Options,
    UsageError,
    Verbs,
    add_verb,
    client_of,
    find_all,
    not_empty,
    print_result,
    require_one_of,
)
from footplate.cli.text import metric_order, number, print_json, short, sparkline, table
from footplate.contract.events import json_safe
from footplate.contract.name_list import split_names

if TYPE_CHECKING:
    from footplate import Client, Job
    from footplate.sdk.models import Series

ENVELOPE = ("no", "step", "epoch")
HEAD = ("LAST", "LEAST", "LEAST AT", "MOST", "MOST AT", "POINTS", "CURVE")
OPTIONAL_COLUMNS = ("POINTS", "MOST AT", "LEAST AT", "MOST", "LEAST")
"""The columns that are left out if a terminal is too narrow, in this order."""
DEFAULT_METRICS = ("loss", "eval_loss")
"""The metrics that --plot draws if --names is not used."""
WIDTH = 32
"""The width of a curve in characters. A character shows the mean of a few points."""
REDRAW_SECONDS = 0.5


def add_verbs(verbs: Verbs) -> None:
    metrics = add_verb(verbs, "metrics", run_metrics, "show the metrics of a job, or compare those of several jobs")
    metrics.add_argument(
        "jobs", metavar="JOB", nargs="+", type=not_empty, help=f"{JOB_HELP}; several jobs are compared"
    )
    metrics.add_argument(
        "--names", type=not_empty, help="only these metrics, with commas; a comma in a name is written \\,"
    )
    metrics.add_argument("--first-step", type=int, metavar="N", help="only logs of this step and later ones")
    metrics.add_argument("--last-step", type=int, metavar="N", help="only logs of this step and earlier ones")
    metrics.add_argument("--csv", action="store_true", help="print every log and evaluation as CSV")
    metrics.add_argument(
        "--plot", metavar="FILE", type=not_empty, help="draw the curves to a .png, .svg or .pdf (needs matplotlib)"
    )
    metrics.add_argument("-f", "--follow", action="store_true", help="redraw with each new log until the job ends")


def run_metrics(options: Options) -> int:
    if options.follow and (options.json or options.csv):
        raise UsageError(
            "--follow cannot be used with --json or --csv", hint="use footplate events --kinds log,eval -f --json"
        )
    require_one_of(options, "--json", "--csv")
    require_one_of(options, "--plot", "--csv")
    require_one_of(options, "--plot", "--follow")
    if options.follow and len(options.jobs) > 1:
        raise UsageError("--follow works for one job only", hint="leave --follow out, or name one job")
    first_step, last_step = options.first_step, options.last_step
    if None not in (first_step, last_step) and first_step > last_step:
        raise UsageError(f"--first-step {first_step} is after --last-step {last_step}", hint="exchange the two")
    client = client_of(options)
    jobs = find_all(client, options.jobs)
    if options.plot:
        _plot(client, jobs, options)
    elif options.json or options.csv:
        _every_row(jobs, options)
    elif options.follow:
        _follow(jobs[0], options)
    else:
        _draw(jobs, options)
    return 0


def _plot(client: Client, jobs: Sequence[Job], options: Options) -> None:
    """Draws the curves to an image file, in the format of the file name's suffix."""
    recorded_names = list(dict.fromkeys(name for job in jobs for name in job.metrics.summary()))
    names = (
        _chosen_names(recorded_names, options.names)
        if options.names
        else [name for name in recorded_names if name in DEFAULT_METRICS] or recorded_names
    )
    axes = client.compare(jobs, *names, first_step=options.first_step, last_step=options.last_step)
    try:
        axes.figure.savefig(options.plot, bbox_inches="tight")
    except ValueError as error:
        raise UsageError(f"{options.plot!r} cannot be drawn: {error}", hint="name a .png, .svg or .pdf file") from error
    print_result(options, {"plot": options.plot}, options.plot)


def _every_row(jobs: Sequence[Job], options: Options) -> None:
    """Prints all logs and evaluations as JSON or CSV. With several jobs, each row has the job's id."""
    rows = [({"job": job.id} if len(jobs) > 1 else {}) | row for job in jobs for row in job.metrics()]
    envelope = ("job", *ENVELOPE) if len(jobs) > 1 else ENVELOPE
    recorded_names = dict.fromkeys(name for row in rows for name in row if name not in envelope)
    columns = [*envelope, *_chosen_names(list(recorded_names), options.names)]
    rows = [row for row in rows if _is_in_range(options, row)]
    if options.json:
        for row in rows:
            print_json({name: json_safe(value) for name, value in row.items() if name in columns})
        return
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows([row.get(name, "") for name in columns] for row in rows)


def _is_in_range(options: Options, row: dict[str, Any]) -> bool:
    """Returns True if a row's step is in the range. A row without a step is shown only if the range has no limits."""
    first_step, last_step, step = options.first_step, options.last_step, row["step"]
    if step is None:
        return first_step is None and last_step is None
    return (first_step is None or step >= first_step) and (last_step is None or step <= last_step)


def _curves(job: Job, names: Sequence[str], options: Options) -> dict[str, Series]:
    """Returns the curves that have a point in the range of steps."""
    curves = job.metrics.series(*names, points=4 * WIDTH, first_step=options.first_step, last_step=options.last_step)
    return {name: curve for name, curve in curves.items() if curve.y}


def _chosen_names(metric_names: Sequence[str], names_text: str | None) -> Sequence[str]:
    if names_text is None:
        return metric_names
    names = split_names(names_text)
    if missing_names := [name for name in names if name not in metric_names]:
        raise UsageError(
            f"the job has no metric {missing_names[0]!r}", hint=f"it has: {', '.join(metric_names) or 'none yet'}"
        )
    return names


def _draw(jobs: Sequence[Job], options: Options, replaced_lines: int = 0) -> int:
    """Prints a table with the metrics of one job, or a table that compares several jobs, in place of earlier lines.

    Returns its number of lines.
    """
    if replaced_lines:
        print(f"\033[{replaced_lines}A\033[J", end="")
    is_comparison = len(jobs) > 1
    recorded_names = sorted({name for job in jobs for name in job.metrics.summary()}, key=metric_order)
    names = _chosen_names(recorded_names, options.names)
    curves = {job.id: _curves(job, names if options.names else (), options) for job in jobs}
    rows = [
        (name, *([job.name or short(job.id)] if is_comparison else []),
         *_curve_cells(curves[job.id][name], options))
        for name in names
        for job in jobs
        if name in curves[job.id]
    ]  # fmt: skip
    head = ("METRIC", *(["JOB"] if is_comparison else []), *HEAD)
    empty_text = _empty_text(bool(names), options, "jobs have" if is_comparison else "job has")
    table(head, rows, empty_text, optional_columns=OPTIONAL_COLUMNS)
    return len(rows) + 1 if rows else 0


def _empty_text(has_metrics: bool, options: Options, subject: str) -> str:
    if not has_metrics:
        return f"the {subject} logged no metrics yet"
    end = "on" if options.last_step is None else f"to {options.last_step}"
    return f"the {subject} logged no metrics from step {options.first_step or 0} {end}"


def _curve_cells(curve: Series, options: Options) -> tuple[str, ...]:
    """Returns the cells of a curve, for the columns in HEAD.

    The service thins a long curve, but keeps its last point and its extremes, so these values are exact.
    """
    finite_points = [(y, x) for x, y in zip(curve.x, curve.y, strict=True) if math.isfinite(y)]
    extremes = [choose(finite_points, key=itemgetter(0)) for choose in (min, max)] if finite_points else [("", "")] * 2
    point_count = len(curve.y) if curve.exact else None
    if options.first_step is None and options.last_step is None:
        point_count = curve.count
    curve_text = sparkline([y for y, _ in finite_points], WIDTH)
    return number(curve.y[-1]), *(number(value) for pair in extremes for value in pair), number(point_count), curve_text


def _follow(job: Job, options: Options) -> None:
    """Redraws the table in a terminal until the job ends. In a pipe, prints the table once, when the job has ended."""
    if not sys.stdout.isatty():
        for _ in job.events(after=job.info.last_no, kinds="log,eval"):
            pass
        _draw([job], options)
        return
    # Switches line wrapping off. `_draw` moves the cursor up by the number of lines, so a wrapped line would stay.
    print("\033[?7l", end="")
    try:
        line_count, redraw_at = _draw([job], options), 0.0
        for _ in job.events(after=job.info.last_no, kinds="log,eval"):
            if time.monotonic() >= redraw_at:
                line_count, redraw_at = _draw([job], options, line_count), time.monotonic() + REDRAW_SECONDS
        _draw([job], options, line_count)
    finally:
        print("\033[?7h", end="", flush=True)
