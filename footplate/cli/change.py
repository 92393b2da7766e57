"""The verbs `cancel`, `pause`, `resume`, `do`, `rm` and `fork`. All but `do` and `fork` also take filters."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from operator import methodcaller
from typing import TYPE_CHECKING, Any

from footplate.cli.context import (
    USAGE,
    Options,
    UsageError,
    Verbs,
    add_changes,
    add_filters,
    add_job,
    add_verb,
    client_of,
    filters_of,
    find_all,
    not_empty,
    print_deleted,
    print_result,
)
from footplate.cli.submit import set_values
from footplate.cli.text import print_json, print_lines, print_message
from footplate.cli.watch import watch_job

if TYPE_CHECKING:
    from footplate import Job
    from footplate.sdk.models import Fork

SHOWN = 60
"""The largest number of characters that is printed of a changed value."""


def add_verbs(verbs: Verbs) -> None:
    cancel = add_verb(verbs, "cancel", run_cancel, "cancel jobs; their checkpoints and outputs are kept")
    cancel.add_argument(
        "--mode",
        choices=("checkpoint", "graceful", "kill"),
        default="checkpoint",
        help="save a checkpoint first (the default), stop after the current step, or kill the process at once",
    )
    pause = add_verb(
        verbs, "pause", run_pause, "save a checkpoint of running jobs and stop them, until they are resumed"
    )
    resume = add_verb(
        verbs, "resume", run_resume, "continue paused, failed or cancelled jobs from their last checkpoint"
    )
    resume.add_argument(
        "--checkpoint",
        metavar="CHECKPOINT",
        type=not_empty,
        help="continue from an older checkpoint (best, or its id), and delete all newer ones; `fork` keeps them",
    )
    resume.add_argument("--max-steps", type=int, help="a new, higher max_steps")
    resume.add_argument("--num-train-epochs", type=float, help="a new, higher number of epochs")
    resume.add_argument("--time-limit", metavar="TIME", help="a new, higher time limit, such as 8h")
    resume.add_argument("--priority", type=int, help="a new priority in the queue, from -100 to 100")
    resume.add_argument("--pool", help="another pool of nodes")
    do = add_verb(verbs, "do", run_do, "make running jobs save, evaluate or change an argument after the current step")
    do.add_argument("--save", action="store_true", help="save a checkpoint")
    do.add_argument("--evaluate", action="store_true", help="run an evaluation")
    names = "learning_rate, max_steps, logging_steps, eval_steps or save_steps"
    example = "with several optimizers, learning_rate.ID=VALUE"
    add_changes(do, f"change {names}; {example}", metavar="NAME=VALUE")
    rm = add_verb(verbs, "rm", run_rm, "delete jobs that have ended, with their files")
    add_job(do, nargs="+")
    for verb in (cancel, pause, resume, rm):
        add_job(verb, nargs="*")
        add_filters(
            verb.add_argument_group("filters, instead of JOB: all jobs that match and that the verb can change")
        )
    fork = add_verb(verbs, "fork", run_fork, "start a new job from a checkpoint of another job, and print its id")
    add_job(fork)
    add_changes(fork, "change one value of the spec, such as training.learning_rate=1e-5; null removes the value")
    fork.add_argument(
        "--checkpoint", default="latest", metavar="C", type=not_empty, help="latest (the default), best or an id"
    )
    fork.add_argument("--weights", action="store_true", help="use only the weights, and start at step 0")
    fork.add_argument("--name", type=not_empty, help="the new job's name (default: the other job's name)")
    fork.add_argument("--watch", action="store_true", help="watch the new job until it ends")


def run_cancel(options: Options) -> int:
    return _change(options, "cancel", lambda job: job.cancel(options.mode), mode=options.mode)


def run_pause(options: Options) -> int:
    return _change(options, "pause", lambda job: job.pause())


def run_resume(options: Options) -> int:
    names = ("checkpoint", "max_steps", "num_train_epochs", "time_limit", "priority", "pool")
    changes: Any = {name: value for name in names if (value := getattr(options, name)) is not None}
    if changes and filters_of(options):
        option_names = ", ".join("--" + name.replace("_", "-") for name in changes)
        raise UsageError(
            f"{option_names} cannot be combined with filters",
            hint=f"leave {option_names} out, or name the jobs instead of filtering",
        )
    return _change(options, "resume", lambda job: job.resume(**changes))


def run_do(options: Options) -> int:
    for word in options.job:
        if option := {"save": "--save", "evaluate": "--evaluate"}.get(word, f"--set {word}" if "=" in word else None):
            raise UsageError(f"{word!r} is not the id or name of a job", hint=f"write {option}")
    arguments = set_values({}, options.changes, example="learning_rate=1e-5")
    return _change_each(options, lambda job: job.do(save=options.save, evaluate=options.evaluate, set=arguments))


def _change_each(options: Options, change: Callable[[Job], Job | None]) -> int:
    """Changes the named jobs, and prints each of them. None means that the job was deleted."""
    for job in find_all(client_of(options), options.job):
        if change(job) is None:
            print_deleted(options, job.id)
        else:
            print_result(options, job.info, f"{job.id} {job.state} ({job.info.message or job.reason})")
    return 0


def _change(options: Options, action: str, change: Callable[[Job], Job | None], **parameters: Any) -> int:
    """Applies an action to the named jobs or to all that match the filters.

    Returns 2 if the action was refused for one of the matching jobs.
    """
    filters = filters_of(options)
    if options.job and filters:
        raise UsageError("the command has both jobs and filters", hint="use one of the two")
    if options.job:
        return _change_each(options, change)
    if not filters:
        hint = "name an id, a name, @last, or filters such as --tag TAG --state running"
        raise UsageError("no job is named", hint=hint)
    outcomes = client_of(options).jobs.bulk(action, **parameters, **filters)
    for outcome in outcomes:
        if options.json:
            print_json(outcome)
        elif outcome.error is not None:
            hint = f"; {outcome.error.hint}" if outcome.error.hint else ""
            print_message(f"{outcome.job}: {outcome.error.detail}{hint}")
        else:
            print_lines(f"{outcome.job} {outcome.state or 'deleted'}")
    if not outcomes:
        print_message(f"no job matches the filters and can be changed by {action}")
    return USAGE if any(outcome.error for outcome in outcomes) else 0


def run_rm(options: Options) -> int:
    return _change(options, "delete", methodcaller("delete"))


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
