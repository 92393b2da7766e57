"""The verb `metrics`: prints a job's metrics as a table with curves, as JSON or CSV, or draws them to an image file."""

from __future__ import annotations

import csv
import math
import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from footplate.cli.context import JOB_HELP, Options, UsageError, Verbs, add_verb, client_of, find_all
from footplate.cli.text import metric_order, number, print_json, print_lines, short, sparkline, table
from footplate.contract.events import json_safe

if TYPE_CHECKING:
    from footplate import Client, Job
    from footplate.sdk.models import MetricSummary, Seen, Series

ENVELOPE = ("no", "step", "epoch")
HEAD = ("METRIC", "LAST", "LEAST", "LEAST AT", "MOST", "MOST AT", "POINTS", "CURVE")
LEAST = ("POINTS", "MOST AT", "LEAST AT", "MOST", "LEAST")
"""The columns that are left out if a terminal is too narrow, in this order."""
WATCHED = ("loss", "eval_loss")
"""The metrics that --plot draws if --names is not used."""
WIDTH = 32
"""The width of a curve in characters. A character shows the mean of a few points."""
REDRAW_SECONDS = 0.5


def add_verbs(verbs: Verbs) -> None:
    metrics = add_verb(verbs, "metrics", run_metrics, "show the metrics of a job, or compare those of several jobs")
    metrics.add_argument("jobs", metavar="JOB", nargs="+", help=f"{JOB_HELP}; several jobs are compared")
    metrics.add_argument("--names", help="only these metrics, with commas")
    metrics.add_argument("--csv", action="store_true", help="print every log and evaluation as CSV")
    metrics.add_argument("--plot", metavar="FILE", help="draw the curves to a .png, .svg or .pdf (needs matplotlib)")
    metrics.add_argument("-f", "--follow", action="store_true", help="redraw with each new log until the job ends")


def run_metrics(options: Options) -> int:
    if options.follow and (options.json or options.csv):
        raise UsageError(
            "--follow cannot be used with --json or --csv", hint="use footplate events --kinds log,eval -f --json"
        )
    if options.follow and len(options.jobs) > 1:
        raise UsageError("--follow works for one job only", hint="leave --follow out, or name one job")
    client = client_of(options)
    jobs = find_all(client, options.jobs)
    if options.plot:
        _plot(client, jobs, options)
    elif options.json or options.csv:
        _every_row(jobs, options)
    elif options.follow:
        _follow(jobs[0], options.names)
    elif len(jobs) > 1:
        _compare(jobs, options.names)
    else:
        _draw(jobs[0], options.names)
    return 0


def _plot(client: Client, jobs: Sequence[Job], options: Options) -> None:
    """Draws the curves to an image file, in the format of the file name's suffix."""
    recorded = list(dict.fromkeys(name for job in jobs for name in job.metrics.summary()))
    names = (
        _chosen(recorded, options.names)
        if options.names
        else [name for name in recorded if name in WATCHED] or recorded
    )
    axes = client.compare(jobs, *names)
    try:
        axes.figure.savefig(options.plot, bbox_inches="tight")
    except ValueError as error:
        raise UsageError(f"{options.plot!r} cannot be drawn: {error}", hint="name a .png, .svg or .pdf file") from error
    print_lines(options.plot)


def _compare(jobs: Sequence[Job], wanted: str | None) -> None:
    """Prints a table with a line for each metric of each job, sorted by metric."""
    summaries = {job.id: job.metrics.summary() for job in jobs}
    recorded = sorted({name for summary in summaries.values() for name in summary}, key=metric_order)
    names = _chosen(recorded, wanted)
    curves = {job.id: job.metrics.series(*(names if wanted else ()), points=4 * WIDTH) for job in jobs}
    rows = (
        (name, job.name or short(job.id), *_row(summaries[job.id][name], curves[job.id][name])[1:])
        for name in names
        for job in jobs
        if name in summaries[job.id] and name in curves[job.id]
    )
    table((HEAD[0], "JOB", *HEAD[1:]), rows, least=LEAST, empty="the jobs have logged no metrics yet")


def _every_row(jobs: Sequence[Job], options: Options) -> None:
    """Prints all logs and evaluations as JSON or CSV. With several jobs, each row has the job's id."""
    named = [{"job": job.id} if len(jobs) > 1 else {} for job in jobs]
    rows = [{**name, **row} for name, job in zip(named, jobs, strict=True) for row in job.metrics()]
    envelope = [*named[0], *ENVELOPE]
    names = _chosen(list(dict.fromkeys(name for row in rows for name in row if name not in envelope)), options.names)
    kept = [*envelope, *names]
    if options.json:
        for row in rows:
            print_json({name: json_safe(value) for name, value in row.items() if name in kept})
        return
    out = csv.writer(sys.stdout, lineterminator="\n")
    out.writerow(kept)
    out.writerows([row.get(name, "") for name in kept] for row in rows)


def _chosen(known: Sequence[str], wanted: str | None) -> Sequence[str]:
    if wanted is None:
        return known
    names = wanted.split(",")
    if missing := [name for name in names if name not in known]:
        raise UsageError(f"the job has no metric {missing[0]!r}", hint=f"it has: {', '.join(known) or 'none yet'}")
    return names


def _draw(job: Job, wanted: str | None) -> int:
    """Prints a table with the curve of each metric, and returns the number of lines."""
    summary = job.metrics.summary()
    names = _chosen(sorted(summary, key=metric_order), wanted)
    curves = job.metrics.series(*(names if wanted else ()), points=4 * WIDTH)
    table(
        HEAD,
        (_row(summary[name], curves[name]) for name in names if name in curves),
        least=LEAST,
        empty="the job has logged no metrics yet",
    )
    return len(names) + 1 if names else 0


def _row(summary: MetricSummary, curve: Series) -> tuple[str, ...]:
    return (
        summary.name, number(summary.last.value), *_extreme(summary.min), *_extreme(summary.max), str(summary.count),
        sparkline([y for y in curve.y if math.isfinite(y)], WIDTH),
    )  # fmt: skip


def _extreme(seen: Seen | None) -> tuple[str, str]:
    return ("", "") if seen is None else (number(seen.value), number(seen.step))


def _follow(job: Job, wanted: str | None) -> None:
    """Redraws the table in a terminal until the job ends. In a pipe, prints the table once, when the job has ended."""
    if not sys.stdout.isatty():
        for _ in job.events(after=job.info.last_no, kinds="log,eval"):
            pass
        _draw(job, wanted)
        return
    # Switches line wrapping off, because the cursor goes up by the number of lines.
    print("\033[?7l", end="")
    try:
        lines, due = _draw(job, wanted), 0.0
        for _ in job.events(after=job.info.last_no, kinds="log,eval"):
            if time.monotonic() >= due:
                lines, due = _redraw(job, wanted, lines), time.monotonic() + REDRAW_SECONDS
        _redraw(job, wanted, lines)
    finally:
        print("\033[?7h", end="", flush=True)


def _redraw(job: Job, wanted: str | None, lines: int) -> int:
    if lines:
        print(f"\033[{lines}A\033[J", end="")
    return _draw(job, wanted)
