"""The verb `fork`: starts a new job from a checkpoint of another job, with changes to the spec."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from footplate.cli.context import Options, Verbs, add_changes, add_job, add_verb, client_of, not_empty
from footplate.cli.submit import set_values
from footplate.cli.text import print_json, print_message
from footplate.cli.watch import watch_job

if TYPE_CHECKING:
    from footplate.sdk.models import Fork

SHOWN = 60
"""The largest number of characters that is printed of a changed value."""


def add_verbs(verbs: Verbs) -> None:
    fork = add_verb(verbs, "fork", run_fork, "start a new job from a checkpoint of another job, and print its id")
    add_job(fork)
    add_changes(fork, "change one value of the spec, such as training.learning_rate=1e-5; null removes the value")
    fork.add_argument(
        "--checkpoint", default="latest", metavar="C", type=not_empty, help="latest (the default), best or an id"
    )
    fork.add_argument("--weights", action="store_true", help="use only the weights, and start at step 0")
    fork.add_argument("--name", type=not_empty, help="the new job's name (default: the other job's name)")
    fork.add_argument("--watch", action="store_true", help="watch the new job until it ends")


def run_fork(options: Options) -> int:
    patch = set_values({}, options.changes)
    if options.name:
        patch["name"] = options.name
    job = client_of(options).jobs.get(options.job)
    new_job = job.fork(options.checkpoint, mode="weights" if options.weights else "full", patch=patch)
    if options.json:
        print_json(new_job.info)
    else:
        print(new_job.id, flush=True)
        # On stderr, because a script may want only the id from stdout.
        for event in new_job.events(kinds="note", follow=False):
            if "message" in event.data:
                print_message(event.data["message"])
        for line in _difference_lines(new_job.info.fork):
            print_message(line)
    return watch_job(new_job, after=0, as_json=options.json) if options.watch else 0


def _difference_lines(fork: Fork | None) -> Iterator[str]:
    if fork is None:
        return
    for change in fork.changes:
        yield f"{change.pointer}: {_short(change.old)} -> {_short(change.new)}"
    for reason in fork.breaks_exactness:
        yield f"the fork does not continue bit by bit: {reason.pointer}: {reason.detail}"


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= SHOWN else text[: SHOWN - 1] + "…"
