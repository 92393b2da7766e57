"""The verbs `watch`, `logs` and `events`, which print a job's events and follow new ones."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from footplate.cli.context import FAILED, Options, Verbs, add_job, add_verb, client_of, count
from footplate.cli.event_lines import line_of
from footplate.cli.text import clean, number, print_json, print_lines, print_message, print_wrapped, short, size

if TYPE_CHECKING:
    from footplate import Job
    from footplate.contract.events import Event

INTERRUPTED = 130


def add_verbs(verbs: Verbs) -> None:
    watch = add_verb(verbs, "watch", run_watch, "watch a job until it ends; Ctrl-C stops watching, not the job")
    add_job(watch)
    watch.add_argument(
        "--after", type=count, help="start after the event with this number; 0 is the whole history (default: now)"
    )
    logs = add_verb(verbs, "logs", run_logs, "print the lines that training wrote to stdout and stderr")
    add_job(logs)
    logs.add_argument("-f", "--follow", action="store_true", help="print new lines until the job ends")
    logs.add_argument("--rank", type=int, help="only lines of this rank")
    logs.add_argument("--stream", choices=("stdout", "stderr"), help="only lines of this stream")
    logs.add_argument("--grep", metavar="TEXT", help="only lines that contain this text")
    events = add_verb(verbs, "events", run_events, "print a job's events")
    add_job(events)
    events.add_argument("-f", "--follow", action="store_true", help="print new events until the job ends")
    events.add_argument("--kinds", help="only these kinds, with commas: state,log,eval,checkpoint,line,note…")
    events.add_argument("--after", type=count, default=0, help="only events after the one with this number")


def run_watch(options: Options) -> int:
    job = client_of(options).jobs.get(options.job)
    if not options.json:
        message = f": {job.info.message}" if job.info.message else ""
        message = f"; `footplate resume {short(job.id)}` continues it" if job.state == "paused" else message
        print_lines(f"{job.id} {job.state}{message}")
    after = job.info.last_no if options.after is None else options.after
    return watch_job(job, after=after, as_json=options.json)


def watch_job(job: Job, *, after: int, as_json: bool) -> int:
    """Prints a job's events until it has ended. Returns 0 if the job succeeded."""
    try:
        with _event_printer(job, as_json=as_json) as print_event:
            for event in job.events(after=after):
                print_event(event)
            job.wait()
    except KeyboardInterrupt:
        print_message(
            f"stopped watching; {job.id} continues. `footplate watch {short(job.id)}` shows it again, "
            f"`footplate cancel {short(job.id)}` cancels it"
        )
        return INTERRUPTED
    return _print_end(job, as_json=as_json)


@contextmanager
def _event_printer(job: Job, *, as_json: bool) -> Iterator[Callable[[Event], None]]:
    """Yields the function that prints an event: as JSON, as a line in a pipe, or on a terminal's screen."""
    if as_json or not sys.stdout.isatty():
        yield print_json if as_json else _print_line
        return
    # Imported here, because scripts and pipes do not need rich.
    from footplate.cli.screen import Screen

    screen = Screen(job)
    try:
        yield screen.show
    finally:
        screen.close()


def _print_line(event: Event) -> None:
    if text := line_of(event):
        print(clean(text), flush=True)


def _print_end(job: Job, *, as_json: bool) -> int:
    if job.state == "succeeded":
        if not as_json:
            print_lines(*_result_lines(job))
        return 0
    reason = job.error.message if job.error else (job.info.message or job.reason)
    hint = f"; {job.error.hint}" if job.error and job.error.hint else ""
    print_message(f"{job.id} {job.state}: {reason}{hint}; `footplate show {short(job.id)}` shows more")
    return FAILED


def _result_lines(job: Job) -> Iterator[str]:
    """Yields a line with the best evaluation, and one with the number and size of the job's outputs."""
    if best := (job.result or {}).get("best"):
        yield f"best {best['metric']} {number(best['value'])} at step {best['step']}"
    outputs = job.outputs.list()
    total = f"{len(outputs)} {'file' if len(outputs) == 1 else 'files'}, {size(sum(file.bytes for file in outputs))}"
    yield f"outputs: {total}; `footplate download {short(job.id)}` downloads them" if outputs else "no outputs"


def run_logs(options: Options) -> int:
    job = client_of(options).jobs.get(options.job)
    is_empty = True
    for line in job.logs(stream=options.stream, rank=options.rank, grep=options.grep, follow=options.follow):
        is_empty = False
        print_json(line) if options.json else print(clean(line.text), flush=options.follow)
    if is_empty and not options.json:
        print_message(f"no line matches; the state of {job.id} is {job.state}")
    return 0


def run_events(options: Options) -> int:
    job = client_of(options).jobs.get(options.job)
    is_empty = True
    for event in job.events(after=options.after, kinds=options.kinds, follow=options.follow):
        is_empty = False
        if options.json:
            print_json(event)
        else:
            fields = "  ".join(f"{name} {number(value)}" for name, value in event.data.items() if value is not None)
            text = f"{event.no:>6}  {event.at}  {event.kind:<10}  {line_of(event) or fields}"
            print_wrapped(text, indent=8, flush=options.follow)
    if is_empty and not options.json:
        print_message(f"no event matches; the state of {job.id} is {job.state}")
    return 0
