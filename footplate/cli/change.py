"""The verbs `cancel`, `pause`, `resume`, `do` and `rm`. All but `do` also take filters instead of names."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from footplate.cli.context import (
    USAGE,
    Given,
    UsageError,
    Verbs,
    add_changes,
    add_filters,
    add_job,
    add_verb,
    client_of,
    filters_of,
    find_all,
    say_deleted,
)
from footplate.cli.submit import put
from footplate.cli.text import say, say_json, tell

if TYPE_CHECKING:
    from footplate import Job


def add_verbs(verbs: Verbs) -> None:
    cancel = add_verb(verbs, "cancel", run_cancel, "cancel jobs; what they have saved stays")
    cancel.add_argument(
        "--mode",
        choices=("checkpoint", "graceful", "kill"),
        default="checkpoint",
        help="save first (the default), stop at the next step, or at once",
    )
    pause = add_verb(verbs, "pause", run_pause, "save and stop jobs, to be resumed")
    resume = add_verb(verbs, "resume", run_resume, "queue paused, failed or cancelled jobs again, where they stopped")
    resume.add_argument("--max-steps", type=int, help="a higher limit")
    resume.add_argument("--priority", type=int, help="another place in the queue, -100 to 100")
    do = add_verb(verbs, "do", run_do, "have running jobs save, evaluate, or change an argument, at the next step")
    do.add_argument("--save", action="store_true", help="a checkpoint")
    do.add_argument("--evaluate", action="store_true", help="an evaluation")
    names = "learning_rate, max_steps, logging_steps, eval_steps or save_steps"
    several = "learning_rate.ID=VALUE where there are several optimizers"
    add_changes(do, f"{names}, from then on; {several}", metavar="NAME=VALUE")
    rm = add_verb(verbs, "rm", run_rm, "delete jobs that have ended, with their files")
    add_job(do, nargs="+")
    for verb in (cancel, pause, resume, rm):
        add_job(verb, nargs="*")
        add_filters(verb.add_argument_group("instead of JOB: all that are like this, and that it can change"))


def run_cancel(given: Given) -> int:
    if _means_many(given):
        return _bulk(given, "cancel", mode=given.mode)
    return _each(given, lambda job: job.cancel(given.mode))


def run_pause(given: Given) -> int:
    return _bulk(given, "pause") if _means_many(given) else _each(given, lambda job: job.pause())


def run_resume(given: Given) -> int:
    changes: Any = {"max_steps": given.max_steps, "priority": given.priority}
    wanted: Any = {name: value for name, value in changes.items() if value is not None}
    if not _means_many(given):
        return _each(given, lambda job: job.resume(**wanted))
    if wanted:
        raise UsageError("many jobs are resumed as they are", hint="leave --max-steps and --priority out, or name them")
    return _bulk(given, "resume")


def run_do(given: Given) -> int:
    wanted: dict[str, Any] = {}
    for change in given.changes:
        put(wanted, change, example="learning_rate=1e-5")
    return _each(given, lambda job: job.do(save=given.save, evaluate=given.evaluate, set=wanted))


def _each(given: Given, verb: Callable[[Job], Job]) -> int:
    for job in find_all(client_of(given), given.job):
        info = verb(job).info
        if given.json:
            say_json(info.model_dump(mode="json"))
        else:
            say(f"{info.id} {info.state}" + (f" ({info.message or info.reason})"))
    return 0


def _means_many(given: Given) -> bool:
    """Returns True for filters, False for named jobs. Raises UsageError for neither or both."""
    filters = filters_of(given)
    if bool(given.job) != bool(filters):
        return bool(filters)
    if filters:
        raise UsageError("jobs are named, and filters are given", hint="one of the two")
    raise UsageError("no job is named", hint="an id, a name, @last, or filters such as --tag TAG --state running")


def _bulk(given: Given, action: str, **how: Any) -> int:
    """Applies the action to each job by itself. Returns 2 if one of them was refused."""
    outcomes = client_of(given).jobs.bulk(action, **how, **filters_of(given))
    for outcome in outcomes:
        if given.json:
            say_json(outcome.model_dump(mode="json"))
        elif outcome.error is not None:
            tell(f"{outcome.job}: {outcome.error.detail}")
        else:
            say(f"{outcome.job} {outcome.state or 'deleted'}")
    if not outcomes:
        tell(f"no job is like that and can be asked to {action}")
    return USAGE if any(outcome.error for outcome in outcomes) else 0


def run_rm(given: Given) -> int:
    if _means_many(given):
        return _bulk(given, "delete")
    for job in find_all(client_of(given), given.job):
        job.delete()
        say_deleted(given, job.id)
    return 0
