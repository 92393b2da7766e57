"""The verb `fork`: starts another job from a checkpoint of one, with changes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from footplate.cli.context import Given, Verbs, add_changes, add_job, add_verb, client_of, find
from footplate.cli.submit import put
from footplate.cli.text import say_json, tell
from footplate.cli.watch import watch_job

if TYPE_CHECKING:
    from footplate import Job
    from footplate.sdk.models import Fork

SHOWN = 60
"""The longest text of a changed value, in characters."""


def add_verbs(verbs: Verbs) -> None:
    fork = add_verb(verbs, "fork", run_fork, "go on from a job's checkpoint in another job, and print that one's id")
    add_job(fork)
    add_changes(fork, "change one value of its spec, as in training.learning_rate=1e-5; null takes it away")
    fork.add_argument("--checkpoint", default="latest", metavar="C", help="latest (which it is else), best, or an id")
    fork.add_argument("--weights", action="store_true", help="take the weights alone, and begin at step 0")
    fork.add_argument("--name", help="what to call it; else it is called as the other one")
    fork.add_argument("--watch", action="store_true", help="watch it until it ends")


def run_fork(given: Given) -> int:
    patch: dict[str, Any] = {}
    for change in given.changes:
        put(patch, change)
    if given.name:
        patch["name"] = given.name
    job = find(client_of(given), given.job)
    made = job.fork(given.checkpoint, mode="weights" if given.weights else "full", patch=patch)
    if given.json:
        say_json(made.info.model_dump(mode="json", by_alias=True))
    else:
        print(made.id, flush=True)
        # On stderr, because a script may want only the id from stdout.
        for line in (*_notes(made), *_lines(made.info.fork)):
            tell(line)
    return watch_job(made, after=0, as_json=given.json) if given.watch else 0


def _notes(made: Job) -> list[str]:
    """Returns what the service has noted about the fork, such as that no step is left to train."""
    return [str(event.data["message"]) for event in made.events(kinds="note", follow=False) if "message" in event.data]


def _lines(fork: Fork | None) -> Iterator[str]:
    if fork is None:
        return
    for change in fork.changes:
        yield f"{change.pointer}: {_short(change.old)} -> {_short(change.new)}"
    for reason in fork.breaks_exactness:
        yield f"not exactly as it would have gone on: {reason.pointer}: {reason.detail}"


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= SHOWN else text[: SHOWN - 1] + "…"
