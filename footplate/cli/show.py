"""The verbs `ls`, `show` and `queue`: the states of jobs, and the order of those that wait."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from footplate.cli.context import Given, Verbs, add_filters, add_job, add_verb, client_of, count, filters_of, find, show
from footplate.cli.text import age, duration, number, say, say_json, say_wrapped, short, steps, table, why

if TYPE_CHECKING:
    from footplate.sdk.models import JobInfo, QueuedJob

DEFAULT_LIMIT = 20
WATCH_SECONDS = 2.0
CLEAR = "\033[H\033[J"
"""Moves a terminal's cursor to the top and clears the screen."""
COLUMNS: dict[str, Callable[[JobInfo], str]] = {
    "job": lambda job: short(job.id),
    "id": lambda job: job.id,
    "name": lambda job: job.name or "",
    "state": lambda job: job.state,
    "why": why,
    "step": steps,
    "age": lambda job: age(job.created_at),
    "node": lambda job: ", ".join(job.nodes),
    "tags": lambda job: ", ".join(job.tags),
    "attempt": lambda job: str(job.attempt),
    "priority": lambda job: str(job.priority),
    "ran": lambda job: duration(job.running_s),
}
DEFAULT_COLUMNS = ["job", "name", "state", "why", "step", "loss", "age"]
LEAST = ("loss", "why", "age", "step")
"""The columns that a narrow terminal does without, the first one first."""


def add_verbs(verbs: Verbs) -> None:
    ls = add_verb(verbs, "ls", run_ls, "list jobs, newest first")
    add_filters(ls)
    ls.add_argument("--limit", type=count, default=DEFAULT_LIMIT, help=f"the most to list ({DEFAULT_LIMIT}); 0 is all")
    ls.add_argument(
        "--sort",
        choices=("created", "priority", "name"),
        default="created",
        help="newest or highest first; names from A",
    )
    ls.add_argument("--reverse", action="store_true", help="the other way round")
    ls.add_argument(
        "--columns", type=_columns, default=DEFAULT_COLUMNS, metavar="A,B", help=f"of {', '.join(COLUMNS)}, or a metric"
    )
    ls.add_argument("--watch", action="store_true", help="show the table again every two seconds, until Ctrl-C")
    ls.add_argument("-q", "--quiet", action="store_true", help="only ids, whole and one a line")
    add_job(add_verb(verbs, "show", run_show, "show one job"))
    queue = add_verb(verbs, "queue", run_queue, "what waits, in which order, and why")
    add_job(queue, nargs="?")


def run_ls(given: Given) -> int:
    client = client_of(given)
    while True:
        jobs = client.jobs.list(limit=given.limit or None, sort=_sort(given), **filters_of(given))
        if given.quiet:
            say(*(job.id for job in jobs))
        elif given.json:
            for job in jobs:
                say_json(job.info.model_dump(mode="json"))
        else:
            rows = [[cell(job.info, name) for name in given.columns] for job in jobs]
            if given.watch and sys.stdout.isatty():
                print(CLEAR, end="")
            least = [name.upper() for name in LEAST if name in given.columns]
            table([name.upper() for name in given.columns], rows, empty="no job is like that", least=least)
        if not given.watch:
            return 0
        sys.stdout.flush()
        time.sleep(WATCH_SECONDS)


def _sort(given: Given) -> str:
    """Returns the service's word for the order. Created and priority begin with the newest and the highest."""
    descends = (given.sort != "name") != given.reverse
    return f"-{given.sort}" if descends else str(given.sort)


def cell(job: JobInfo, name: str) -> str:
    """Returns the text of one column. A name that is not a column is that of a metric."""
    return COLUMNS[name](job) if name in COLUMNS else number(job.metrics.get(name))


def _columns(text: str) -> list[str]:
    """Parses `--columns`, and refuses empty and repeated names."""
    names = [name.strip() for name in text.split(",")]
    if not all(names) or len(set(names)) < len(names):
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of different names, such as job,state,loss")
    return names


def run_show(given: Given) -> int:
    job = find(client_of(given), given.job).info
    if given.json:
        say_json(job.model_dump(mode="json"))
    else:
        say_wrapped(*(f"{name:<10} {text}" for name, text in _facts(job) if text), indent=11)
        if job.error and job.error.traceback:
            say("", *job.error.traceback.rstrip().split("\n"))
    return 0


def _facts(job: JobInfo) -> Iterator[tuple[str, str | None]]:
    yield "job", job.id
    yield "name", job.name
    # The message of a failed job is its error, which follows.
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


def run_queue(given: Given) -> int:
    client = client_of(given)
    entries = client.queue(find(client, given.job).id if given.job else None)
    head = ("PLACE", "JOB", "NAME", "PRIORITY", "POOL", "WAITS", "WHY")
    empty = "nothing waits" if given.job is None else "this job does not wait"
    return show(given, entries, head, _waiting, empty=empty)


def _waiting(one: QueuedJob) -> tuple[object, ...]:
    why = f"starts after {one.starts_after}" if one.starts_after else one.message or one.reason
    return one.place, short(one.job), one.name, one.priority, one.pool, duration(one.waited_s), why
