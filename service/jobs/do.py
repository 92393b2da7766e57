"""Sends a live command to a running loop: save, evaluate, or change an argument, after the current step.

The request is refused with pointers if its problems can be seen in the spec. The loop reports all other problems with
an event.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from typing import Any, NoReturn

from pydantic import Field, JsonValue
from sqlalchemy import Connection

from footplate.contract.arguments.read import FIELDS
from footplate.contract.body import MAX_PROBLEMS
from footplate.contract.errors import Conflict, IdempotencyMismatch, InvalidSpec, Problem, did_you_mean
from footplate.contract.events import DoData, Kind
from footplate.contract.explain import kind_of
from footplate.contract.fields import Group
from footplate.contract.ids import JobId
from footplate.contract.lifecycle import Action, Desired, JobState
from footplate.contract.messages import Command
from footplate.contract.spec import JobSpec
from footplate.contract.spec_parts import Script
from service.jobs.stopping import lock_for, refuse
from service.jobs.submit import IdempotencyUse
from service.store import commands, events, idempotency, jobs
from service.store.rows import IdempotencyRow, JobRow, loads

CADENCES = {"logging_steps": "logging_strategy", "eval_steps": "eval_strategy", "save_steps": "save_strategy"}
SETTABLE = ("learning_rate", "max_steps", *CADENCES)
MOST = 1000
"""The most commands that a job keeps, because every attempt receives them."""

WHERE_IT_IS = "determines where in the data a step is, so no checkpoint could be continued"
ONCE = "is read when an attempt begins"
_WHY_NOT = {
    **dict.fromkeys(
        ("per_device_train_batch_size", "gradient_accumulation_steps", "seed", "data_seed", "num_train_epochs"),
        WHERE_IT_IS,
    ),
    "num_train_epochs": "determines the length of the run only if max_steps does not",
    "lr_scheduler_type": "must fit the state of the optimizer",
    "optim": "must fit the state of the optimizer",
}
_INSTEAD = {"num_train_epochs": "set max_steps"}


class Do(Group):
    """The commands that the training loop carries out after its current step."""

    save: bool = False
    """Write a checkpoint."""
    evaluate: bool = False
    """Run an evaluation."""
    set: dict[str, JsonValue] = Field(default_factory=dict)
    """Arguments of training to change for the rest of the job, later attempts included: learning_rate, max_steps,
    logging_steps, eval_steps, save_steps. With several optimizers, learning_rate is an object of numbers by their
    ids."""

    def words(self) -> str:
        """Returns the command in words, for a person."""
        requests = [name for name in ("save", "evaluate") if getattr(self, name)]
        return ", ".join([*requests, *(f"{name} {json.dumps(value)}" for name, value in self.set.items())])


def do(
    conn: Connection,
    project: str,
    job_id: JobId,
    request: Do,
    now: int,
    *,
    once: IdempotencyUse | None = None,
    by: str | None = None,
) -> JobRow:
    """Stores a command and returns the job. A repeated request with the same `once` stores nothing.

    Raises NotFound, Conflict if no loop runs or the job has too many commands, and InvalidSpec for a wrong command.
    """
    job = lock_for(Action.DO, conn, project, job_id)
    if once is not None and _was_asked(conn, job, once, now):
        return job
    if job.state is not JobState.RUNNING or job.desired is not Desired.RUN:
        _refuse(job)
    asked = commands.of_job(conn, job_id)
    if problems := list(islice(_problems(job, request, asked), MAX_PROBLEMS)):
        raise InvalidSpec(problems)
    if len(asked) >= MOST:
        raise Conflict(
            f"job {job_id} keeps {MOST} commands, and no more, because each of its attempts receives all of them",
            hint="a schedule, or a callback of your own, changes a rate as often as you like",
            state=job.state,
        )
    request = _exact(request)
    data = DoData(
        status="asked", message=f"asked for: {request.words()}", by=by, save=request.save, evaluate=request.evaluate,
        set=request.set,
    )  # fmt: skip
    no = events.append(conn, job_id, Kind.DO, data.model_dump(exclude_defaults=True), now)
    assert no is not None
    commands.insert_command(conn, job_id, Command(no=no, save=request.save, evaluate=request.evaluate, set=request.set))
    return jobs.get(conn, project, job_id)


def _exact(request: Do) -> Do:
    """Converts numbers to the type of their argument: 5e2 steps are 500, and a rate of 1 is 1.0."""
    types: dict[str, Callable[[Any], Any]] = {"max_steps": int, "learning_rate": _rate}
    exact = {name: types.get(name, _same)(value) for name, value in request.set.items()}
    return request.model_copy(update={"set": exact})


def _rate(value: Any) -> Any:
    return {name: float(rate) for name, rate in value.items()} if isinstance(value, Mapping) else float(value)


def _same(value: Any) -> Any:
    return value


def _was_asked(conn: Connection, job: JobRow, once: IdempotencyUse, now: int) -> bool:
    """Returns True if the same request was made before. The caller holds the job's lock."""
    own = IdempotencyRow(job.project, once.key, once.body_sha256, job.id, None, now)
    holder = idempotency.take(conn, own)
    if (holder.body_sha256, holder.job_id) != (once.body_sha256, job.id):
        raise IdempotencyMismatch(
            f"the Idempotency-Key {once.key!r} was used for something else, on job {holder.job_id}",
            hint="use a new key for every command, or send the first request again",
        )
    return holder is not own


_LATER = {
    JobState.QUEUED: "ask again once it runs",
    JobState.STARTING: "it begins in a moment: ask again once it runs",
    JobState.PAUSED: "resume it first; resume itself takes max_steps",
    JobState.FAILED: "resume it first; resume itself takes max_steps",
    JobState.CANCELLED: "resume it first; resume itself takes max_steps",
}


def _refuse(job: JobRow) -> NoReturn:
    refuse(job, Action.DO, hint=_LATER.get(job.state))


# Problems of a command -----------------------------------------------------------------------------------------------


def _problems(job: JobRow, request: Do, asked: list[Command]) -> Iterator[Problem]:
    if request == Do():
        hint = 'for example {"save": true} or {"set": {"learning_rate": 1e-5}}'
        yield Problem("", "nothing_to_do", "the request has no command", hint)
    spec = JobSpec.parse(json.loads(job.spec))
    if isinstance(spec.loop, Script):
        yield from _problems_of_a_script(request)
        return
    if why := _has_no_loop(spec):
        wanted = [name for name in ("save", "evaluate", "set") if getattr(request, name)]
        yield from (Problem(f"/{name}", "no_such_loop", why) for name in wanted)
        return
    has_rows = spec.data.eval is not None or spec.data.split is not None
    if request.evaluate and not has_rows and (spec.trainer is None or not spec.trainer.is_own):
        yield Problem("/evaluate", "nothing_to_evaluate", "the job has no data.eval", "a fork of it could have some")
    unknown = [name for name in request.set if name not in SETTABLE]
    yield from (_cannot_be_set(name) for name in unknown)
    settable = {name: value for name, value in request.set.items() if name in SETTABLE}
    yield from _wrong(job, spec, settable, asked)


def _problems_of_a_script(request: Do) -> Iterator[Problem]:
    """Yields the problems that every Trainer of a script would report. The node reports all others with an event."""
    for name, value in request.set.items():
        if name not in SETTABLE:
            yield _cannot_be_set(name)
        elif isinstance(value, bool) or not isinstance(value, int | float):
            yield Problem(f"/set/{name}", "wrong_type", f"is {kind_of(value)}, a number is needed")
        elif value < 0 or (value < 1 and name != "learning_rate"):
            yield Problem(f"/set/{name}", "out_of_range", f"must be at least {0 if name == 'learning_rate' else 1}")


def _has_no_loop(spec: JobSpec) -> str | None:
    if spec.loop is not None:
        return "the job has a loop of its own, which receives stops and no other commands"
    if spec.data.train is None:
        return "the job does not train, so it has no step after which to do this"
    return None


def _cannot_be_set(name: str) -> Problem:
    pointer, can = f"/set/{name[:80]}", f"these can: {', '.join(SETTABLE)}"
    if name in FIELDS:
        why = _WHY_NOT.get(name, ONCE)
        hint = _INSTEAD.get(name, f"fork the job with another one; {can}")
        return Problem(pointer, "cannot_be_set", f"{name} {why}", hint)
    near = did_you_mean(name[:80], SETTABLE) or did_you_mean(name[:80], FIELDS)
    return Problem(pointer, "unknown_field", f"no training argument named {name[:80]!r}", near or can)


def _wrong(job: JobRow, spec: JobSpec, wanted: dict[str, Any], asked: list[Command]) -> Iterator[Problem]:
    plain = dict(wanted)
    if "learning_rate" in plain:
        yield from _wrong_rate(spec, plain)
    step = int((loads(job.progress) or {}).get("step", 0))
    end = plain.get("max_steps")
    if isinstance(end, int | float) and not isinstance(end, bool) and end <= step:
        yield Problem("/set/max_steps", "out_of_range", f"step {step} is reached already", f"at least {step + 1}")
        del plain["max_steps"]
    for name, strategy in CADENCES.items():
        how = getattr(spec.training, strategy)
        if name in plain and how != "steps":
            detail = f"{name} has no effect, because {strategy} is {how!r}"
            yield Problem(f"/set/{name}", "not_counted", detail, f'a fork with {strategy} "steps" would')
            del plain[name]
    yield from _unfit(job, plain, asked)


def _wrong_rate(spec: JobSpec, plain: dict[str, Any]) -> Iterator[Problem]:
    """Yields problems of a learning rate. Removes the rate from `plain` if the spec's rules cannot check its value."""
    value, names = plain["learning_rate"], [optimizer.id for optimizer in spec.optimizers or ()]
    at = "/set/learning_rate"
    if spec.training.follows_a_metric:
        how = spec.training.lr_scheduler_type
        yield Problem(
            at, "cannot_be_set", f"{how} changes the rate by the results of evaluations", "a fork may have another"
        )
        del plain["learning_rate"]
    elif isinstance(value, Mapping):
        del plain["learning_rate"]
        if not names:
            yield Problem(at, "wrong_type", f"is {kind_of(value)}, a number is needed: there is one optimizer")
            return
        for name, rate in value.items():
            if name not in names:
                hint = did_you_mean(name[:80], names) or f"there is: {', '.join(names)}"
                yield Problem(f"{at}/{name[:80]}", "unknown_field", f"there is no optimizer {name[:80]!r}", hint)
            elif isinstance(rate, bool) or not isinstance(rate, int | float):
                yield Problem(f"{at}/{name}", "wrong_type", f"is {kind_of(rate)}, a number is needed")
            elif rate < 0:
                yield Problem(f"{at}/{name}", "out_of_range", "must be at least 0")
        if not value:
            yield Problem(at, "missing", "names no optimizer", f"there is: {', '.join(names)}")
    elif len(names) > 1:
        example = json.dumps({"learning_rate": {names[0]: 1e-3}})
        yield Problem(at, "which_one", f"there are several optimizers: {', '.join(names)}", f"name one: {example}")
        del plain["learning_rate"]


def _unfit(job: JobRow, wanted: dict[str, Any], asked: list[Command]) -> Iterator[Problem]:
    """Yields the problems of the job's spec with the wanted values, and with the values of all earlier commands."""
    if not wanted:
        return
    document = json.loads(job.spec)
    before = {name: value for command in asked for name, value in command.set.items() if not isinstance(value, Mapping)}
    document["training"] = {**document["training"], **before, **wanted}
    try:
        JobSpec.parse(document)
    except InvalidSpec as invalid:
        for problem in invalid.problems:
            name = problem.pointer.removeprefix("/training/").partition("/")[0]
            pointer = f"/set{problem.pointer.removeprefix('/training')}" if name in wanted else "/set"
            yield Problem(pointer, problem.code, problem.detail, problem.hint)
