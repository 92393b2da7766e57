"""The verbs `ls`, `show` and `queue`: the states of jobs, and the order of those that wait."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING

from footplate.cli.context import Given, Verbs, add_filters, add_job, add_verb, client_of, count, filters_of, find
from footplate.cli.text import age, duration, number, say, say_json, short, steps, table, why

if TYPE_CHECKING:
    from footplate.sdk.models import JobInfo, QueuedJob

DEFAULT_LIMIT = 20


def add_verbs(verbs: Verbs) -> None:
    ls = add_verb(verbs, "ls", run_ls, "list jobs, newest first")
    add_filters(ls)
    ls.add_argument("--limit", type=count, default=DEFAULT_LIMIT, help=f"the most to list ({DEFAULT_LIMIT}); 0 is all")
    ls.add_argument("-q", "--quiet", action="store_true", help="only ids, whole and one a line")
    show = add_verb(verbs, "show", run_show, "show one job")
    add_job(show)
    queue = add_verb(verbs, "queue", run_queue, "what waits, in which order, and why")
    add_job(queue, nargs="?")


def run_ls(given: Given) -> int:
    jobs = client_of(given).jobs.list(limit=given.limit or None, **filters_of(given))
    if given.quiet:
        say(*(job.id for job in jobs))
    elif given.json:
        for job in jobs:
            say_json(job.info.model_dump(mode="json"))
    else:
        head = ("JOB", "NAME", "STATE", "WHY", "STEP", "LOSS", "AGE")
        table(head, (_row(job.info) for job in jobs), empty="no job is like that", least=("LOSS", "WHY", "AGE", "STEP"))
    return 0


def _row(job: JobInfo) -> tuple[str, ...]:
    loss = number(job.metrics.get("loss"))
    return short(job.id), job.name or "", job.state, why(job), steps(job), loss, age(job.created_at)


def run_show(given: Given) -> int:
    job = find(client_of(given), given.job).info
    if given.json:
        say_json(job.model_dump(mode="json"))
    else:
        say(*(f"{name:<10} {text}" for name, text in _facts(job) if text))
        if job.error and job.error.traceback:
            say("", *job.error.traceback.rstrip().split("\n"))
    return 0


def _facts(job: JobInfo) -> Iterator[tuple[str, str | None]]:
    yield "job", job.id
    yield "name", job.name
    yield "state", f"{job.state} ({job.message or job.reason})"
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
    if given.json:
        for entry in entries:
            say_json(entry.model_dump(mode="json"))
    else:
        head = ("PLACE", "JOB", "NAME", "PRIORITY", "POOL", "WAITS", "WHY")
        table(head, map(_waiting, entries), empty="nothing waits" if given.job is None else "this job does not wait")
    return 0


def _waiting(one: QueuedJob) -> tuple[object, ...]:
    why = f"starts after {one.starts_after}" if one.starts_after else one.message or one.reason
    return one.place, short(one.job), one.name, one.priority, one.pool, duration(one.waited_s), why
