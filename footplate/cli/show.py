"""The verbs `ls`, `show` and `queue`: lists jobs, shows one job, and lists the queue."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from footplate.cli.context import (
    UNREACHABLE,
    Options,
    Verbs,
    add_filters,
    add_job,
    add_verb,
    client_of,
    count,
    exit_code,
    filters_of,
    require_one_of,
    show,
)
from footplate.cli.text import (
    age,
    duration,
    number,
    print_json,
    print_lines,
    print_message,
    print_wrapped,
    short,
    steps,
    table,
)
from footplate.contract.errors import FootplateError, did_you_mean

if TYPE_CHECKING:
    from footplate import Client
    from footplate.sdk.models import JobInfo, QueuedJob

DEFAULT_LIMIT = 20
WATCH_SECONDS = 2.0
CLEAR = "\033[H\033[J"
"""Moves a terminal's cursor to the top and clears the screen."""
IMPLIED_REASONS = ("training", "completed", "cancel", "pause")
"""Reasons that are not shown, because the job's state implies them."""
COLUMNS: dict[str, Callable[[JobInfo], str]] = {
    "job": lambda job: short(job.id),
    "id": lambda job: job.id,
    "name": lambda job: job.name or "",
    "state": lambda job: job.state,
    "why": lambda job: "" if job.reason in IMPLIED_REASONS else job.reason,
    "step": steps,
    "age": lambda job: age(job.created_at),
    "node": lambda job: ", ".join(job.nodes),
    "tags": lambda job: ", ".join(job.tags),
    "attempt": lambda job: str(job.attempt),
    "priority": lambda job: str(job.priority),
    "ran": lambda job: duration(job.running_s),
}
DEFAULT_COLUMNS = ["job", "name", "state", "why", "step", "loss", "age"]
OPTIONAL_COLUMNS = ("loss", "why", "age", "step")
"""The columns that are left out if a terminal is too narrow, in this order."""


def add_verbs(verbs: Verbs) -> None:
    ls = add_verb(verbs, "ls", run_ls, "list jobs, newest first")
    add_filters(ls)
    ls.add_argument(
        "--limit", type=count, default=DEFAULT_LIMIT, help=f"the largest number of jobs ({DEFAULT_LIMIT}); 0 is all"
    )
    ls.add_argument(
        "--sort",
        choices=("created", "priority", "name"),
        default="created",
        help="sort by time (newest first), by priority (highest first) or by name",
    )
    ls.add_argument("--reverse", action="store_true", help="reverse the order")
    columns = f"the columns, from {', '.join(COLUMNS)}, and names of metrics"
    ls.add_argument("--columns", type=_columns, metavar="A,B", help=columns)
    ls.add_argument("--watch", action="store_true", help="show the table again every two seconds, until Ctrl-C")
    ls.add_argument("-q", "--quiet", action="store_true", help="print only full ids, one per line")
    add_job(add_verb(verbs, "show", run_show, "show the state, metrics, error and other facts of one job"))
    queue = add_verb(verbs, "queue", run_queue, "list the waiting jobs in their order, with the reasons")
    add_job(queue, nargs="?")


def run_ls(options: Options) -> int:
    require_one_of(options, "--json", "--quiet", "--columns")
    client = client_of(options)
    _print_jobs(client, options)
    is_connected = True
    while options.watch:
        sys.stdout.flush()
        time.sleep(WATCH_SECONDS)
        try:
            _print_jobs(client, options)
            if not is_connected:
                print_message("connected again")
            is_connected = True
        except FootplateError as error:
            if exit_code(error) != UNREACHABLE:
                raise
            if is_connected:
                print_message(f"connection lost ({error.message}); trying again until Ctrl-C")
            is_connected = False
    return 0


def _print_jobs(client: Client, options: Options) -> None:
    """Prints the chosen jobs once."""
    columns = options.columns or DEFAULT_COLUMNS
    # A minus means descending: the newest or the highest first.
    sort = f"-{options.sort}" if (options.sort != "name") != options.reverse else options.sort
    jobs = client.jobs.list(limit=options.limit or None, sort=sort, **filters_of(options))
    if options.quiet:
        print_lines(*(job.id for job in jobs))
    elif options.json:
        for job in jobs:
            print_json(job.info)
    else:
        rows = [[cell(job.info, name) for name in columns] for job in jobs]
        if options.watch and sys.stdout.isatty():
            print(CLEAR, end="")
        optional_columns = [name.upper() for name in OPTIONAL_COLUMNS if name in columns]
        table([name.upper() for name in columns], rows, empty_text="no job matches", optional_columns=optional_columns)
        if rows:
            for name in options.columns or ():
                warn_of_empty_column(name, [job.info for job in jobs])


def cell(job: JobInfo, name: str) -> str:
    """Returns the text of a job's cell in a column. A name that is not in COLUMNS is the name of a metric."""
    return COLUMNS[name](job) if name in COLUMNS else number(job.metrics.get(name))


def warn_of_empty_column(name: str, jobs: Sequence[JobInfo]) -> None:
    """Prints a message if a column's name is neither a fact nor a metric of any listed job, because it may be wrong."""
    metrics = sorted({metric for job in jobs for metric in job.metrics})
    if name not in COLUMNS and name not in metrics:
        hint = did_you_mean(name, [*COLUMNS, *metrics]) or f"they have: {', '.join(metrics) or 'none yet'}"
        print_message(f"none of these jobs has a metric {name!r}; {hint}")


def _columns(text: str) -> list[str]:
    """Parses the option `--columns`. Raises ArgumentTypeError for empty and repeated names."""
    names = [name.strip() for name in text.split(",")]
    if not all(names) or len(set(names)) < len(names):
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of different names, such as job,state,loss")
    return names


def run_show(options: Options) -> int:
    job = client_of(options).jobs.get(options.job).info
    if options.json:
        print_json(job)
    else:
        print_wrapped(*(f"{name:<10} {text}" for name, text in _facts(job) if text), indent=11)
        if job.error and job.error.traceback:
            print_lines("", *job.error.traceback.rstrip().split("\n"))
    return 0


def _facts(job: JobInfo) -> Iterator[tuple[str, str | None]]:
    yield "job", job.id
    yield "name", job.name
    # A failed job's message repeats its error, which is printed below, so only the reason stands here.
    yield "state", f"{job.state} ({job.reason if job.error else job.message or job.reason})"
    yield "step", steps(job)
    if job.state == "running" and job.progress and job.progress.eta_s is not None:
        yield "left", f"about {duration(job.progress.eta_s)}"
    yield "metrics", "  ".join(f"{name} {number(value)}" for name, value in job.metrics.items())
    if job.result and job.result.get("best"):
        best = job.result["best"]
        yield "best", f"{best['metric']} {number(best['value'])} at step {best['step']}"
    yield "attempt", str(job.attempt) if job.attempt else None
    yield "node", ", ".join(job.nodes)
    yield "tags", ", ".join(job.tags)
    yield "metadata", json.dumps(job.metadata) if job.metadata else None
    yield "created", f"{job.created_at} ({age(job.created_at)} ago)"
    yield "ran for", duration(job.running_s) if job.running_s else None
    yield "error", f"{job.error.code}: {job.error.message}" if job.error else None
    yield "hint", job.error.hint if job.error else None
    yield "now", ", ".join(job.actions)


def run_queue(options: Options) -> int:
    client = client_of(options)
    entries = client.queue(client.jobs.get(options.job).id if options.job else None)
    head = ("PLACE", "JOB", "NAME", "PRIORITY", "POOL", "WAITS", "WHY")
    empty_text = "no job is waiting" if options.job is None else "this job is not waiting"
    return show(options, entries, head, _queue_row, empty_text)


def _queue_row(job: QueuedJob) -> tuple[object, ...]:
    reason = f"starts after {job.starts_after}" if job.starts_after else job.message or job.reason
    return job.place, short(job.job), job.name, job.priority, job.pool, duration(job.waited_s), reason
