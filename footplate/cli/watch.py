"""The verbs `watch`, `logs` and `events`: show events as they happen, over connections that may break."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from footplate.cli.context import FAILED, Given, Verbs, add_job, add_verb, client_of, find
from footplate.cli.event_lines import line_of
from footplate.cli.text import clean, number, say, say_json, say_wrapped, short, size, tell

if TYPE_CHECKING:
    from footplate import Job
    from footplate.contract.events import Event

INTERRUPTED = 130


def add_verbs(verbs: Verbs) -> None:
    watch = add_verb(verbs, "watch", run_watch, "watch a job until it ends; Ctrl-C stops watching, not the job")
    add_job(watch)
    watch.add_argument("--after", type=int, help="from this event's number on; 0 is the whole history, else from now")
    logs = add_verb(verbs, "logs", run_logs, "what training printed")
    add_job(logs)
    logs.add_argument("-f", "--follow", action="store_true", help="go on until the job ends")
    logs.add_argument("--rank", type=int, help="of this rank only")
    logs.add_argument("--stream", choices=("stdout", "stderr"), help="of this stream only")
    logs.add_argument("--grep", metavar="WORDS", help="only lines with this in them, word for word")
    events = add_verb(verbs, "events", run_events, "a job's history")
    add_job(events)
    events.add_argument("-f", "--follow", action="store_true", help="go on until the job ends")
    events.add_argument("--kinds", help="only these, with commas: state,log,eval,checkpoint,line,note…")
    events.add_argument("--after", type=int, default=0, help="from this event's number on")


def run_watch(given: Given) -> int:
    job = find(client_of(given), given.job)
    if not given.json:
        say(f"{job.id} {job.state}" + (f": {job.info.message}" if job.info.message else ""))
    after = job.info.last_no if given.after is None else given.after
    return watch_job(job, after=after, as_json=given.json)


def watch_job(job: Job, *, after: int, as_json: bool) -> int:
    """Shows events until the job has ended. Returns 0 if it succeeded."""
    try:
        with _printing(job, as_json=as_json) as show:
            for event in job.events(after=after):
                show(event)
            job.wait()
    except KeyboardInterrupt:
        tell(
            f"stopped watching; {job.id} goes on. `footplate watch {short(job.id)}` shows it again, "
            f"`footplate cancel {short(job.id)}` ends it"
        )
        return INTERRUPTED
    return _ended(job, as_json=as_json)


@contextmanager
def _printing(job: Job, *, as_json: bool) -> Iterator[Callable[[Event], None]]:
    """Yields what prints an event: as JSON, as a line in a pipe, or on a terminal with progress and curves below."""
    if as_json or not sys.stdout.isatty():
        yield _print_json if as_json else _print_line
        return
    # Imported here, because scripts and pipes do not need rich.
    from footplate.cli.screen import Screen

    screen = Screen(job)
    try:
        yield screen.show
    finally:
        screen.close()


def _print_json(event: Event) -> None:
    say_json(event.model_dump(mode="json"))


def _print_line(event: Event) -> None:
    if text := line_of(event):
        print(clean(text), flush=True)


def _ended(job: Job, *, as_json: bool) -> int:
    if job.state == "succeeded":
        if not as_json:
            say(*_results(job))
        return 0
    said = job.error.message if job.error else (job.info.message or job.reason)
    hint = f"; {job.error.hint}" if job.error and job.error.hint else ""
    tell(f"{job.id} {job.state}: {said}{hint}; `footplate show {short(job.id)}` has more")
    return FAILED


def _results(job: Job) -> Iterator[str]:
    """Yields the best evaluation, and where the outputs are."""
    if best := (job.result or {}).get("best"):
        yield f"best {best['metric']} {number(best['value'])} at step {best['step']}"
    outputs = job.outputs.list()
    count = f"{len(outputs)} {'file' if len(outputs) == 1 else 'files'}, {size(sum(file.bytes for file in outputs))}"
    yield f"outputs: {count}; `footplate download {short(job.id)}` fetches them" if outputs else "it left no outputs"


def run_logs(given: Given) -> int:
    job = find(client_of(given), given.job)
    is_empty = True
    for line in job.logs(stream=given.stream, rank=given.rank, grep=given.grep, follow=given.follow):
        is_empty = False
        if given.json:
            say_json(line.model_dump(mode="json"))
        else:
            print(clean(line.text), flush=given.follow)
    if is_empty and not given.json:
        tell(f"training has printed no such line; {job.id} is {job.state}")
    return 0


def run_events(given: Given) -> int:
    job = find(client_of(given), given.job)
    for event in job.events(after=given.after, kinds=given.kinds, follow=given.follow):
        if given.json:
            _print_json(event)
        else:
            text = f"{event.no:>6}  {event.at}  {event.kind:<10}  {line_of(event) or _rest(event)}"
            say_wrapped(text, indent=8, flush=given.follow)
    return 0


def _rest(event: Event) -> str:
    return "  ".join(f"{name} {number(value)}" for name, value in event.data.items() if value is not None)
