"""Stores a live command for a running job: save, evaluate, or change an argument, after the current step.

A command with a wrong type or a value out of range is refused at once. All other problems depend on the state of the
training, which reports them with an event.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Annotated, Any

from pydantic import BeforeValidator, Field
from pydantic_core import PydanticCustomError
from sqlalchemy import Connection

from footplate.contract.body import MAX_PROBLEMS
from footplate.contract.errors import Conflict, IdempotencyMismatch, InvalidSpec, Problem
from footplate.contract.events import DoData, Kind
from footplate.contract.fields import Group, Whole
from footplate.contract.ids import JobId
from footplate.contract.lifecycle import Action, Desired, JobState
from footplate.contract.messages import Command
from footplate.contract.spec import JobSpec
from service.jobs.stopping import lock_for, refuse
from service.jobs.submit import IdempotencyUse
from service.store import commands, events, idempotency, jobs
from service.store.row_types import IdempotencyRow, JobRow
from service.store.stored_spec import read_spec

MOST = 1000
"""The most commands that a job keeps, because every attempt receives them."""

INTERVALS = ("logging_steps", "eval_steps", "save_steps")


def _rates(value: Any) -> Any:
    """Returns a learning rate, or the rates by optimizer, as floats.

    Without this function, pydantic would report a wrong value twice, once for each type of the union.
    """
    rates = list(value.values()) if isinstance(value, dict) else [value]
    if not rates or any(type(rate) not in (int, float) or rate < 0 for rate in rates):
        text = "must be a number of 0 or more, or an object of such numbers by the optimizers' ids"
        raise PydanticCustomError("wrong_rate", text)
    return {name: float(rate) for name, rate in value.items()} if isinstance(value, dict) else float(rates[0])


Interval = Annotated[float, Field(gt=0)]


class Settable(Group):
    """The training arguments that can change while the job trains. New values hold for the rest of the job."""

    # Only arguments that a request names are read. A factory keeps these defaults out of openapi.json.

    learning_rate: Annotated[float | dict[str, float], BeforeValidator(_rates)] = Field(default_factory=float)
    """A number, or with several optimizers an object of numbers by their ids."""
    max_steps: Annotated[Whole, Field(ge=1)] = Field(default_factory=int)
    logging_steps: Interval = Field(default_factory=float)
    eval_steps: Interval = Field(default_factory=float)
    save_steps: Interval = Field(default_factory=float)


class Do(Group):
    """The commands that the training loop carries out after its current step."""

    save: bool = False
    """Write a checkpoint."""
    evaluate: bool = False
    """Run an evaluation."""
    set: Settable = Settable()
    """Training arguments to change, also for later attempts."""

    @property
    def arguments(self) -> dict[str, Any]:
        """The training arguments that the request names, with their new values."""
        values = self.set.model_dump(exclude_unset=True)
        integer_names = {name for name, value in values.items() if name in INTERVALS and value.is_integer()}
        return values | {name: int(values[name]) for name in integer_names}

    def words(self) -> str:
        """Returns the command in words, for a person."""
        requests = [name for name in ("save", "evaluate") if getattr(self, name)]
        return ", ".join([*requests, *(f"{name} {json.dumps(value)}" for name, value in self.arguments.items())])


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

    Raises NotFound, Conflict if the job does not run or has too many commands, and InvalidSpec for a wrong command.
    """
    job = lock_for(Action.DO, conn, project, job_id)
    if once is not None and _was_requested(conn, job, once, now):
        return job
    if job.state is not JobState.RUNNING or job.desired is not Desired.RUN:
        refuse(job, Action.DO, hint=_LATER.get(job.state))
    earlier_commands = commands.of_job(conn, job_id)
    if problems := list(islice(_problems(job, request, earlier_commands), MAX_PROBLEMS)):
        raise InvalidSpec(problems)
    if len(earlier_commands) >= MOST:
        raise Conflict(
            f"job {job_id} has had {MOST} commands and takes no more, because each attempt receives all of them again",
            hint="to change the learning rate more often, use a schedule or a callback of your own",
            state=job.state,
        )
    data = DoData(
        status="asked", message=f"requested: {request.words()}", by=by, save=request.save, evaluate=request.evaluate,
        set=request.arguments,
    )  # fmt: skip
    no = events.append(conn, job_id, Kind.DO, data.model_dump(exclude_defaults=True), now)
    assert no is not None
    command = Command(no=no, save=request.save, evaluate=request.evaluate, set=request.arguments)
    commands.insert_command(conn, job_id, command)
    return jobs.get(conn, project, job_id)


def _was_requested(conn: Connection, job: JobRow, once: IdempotencyUse, now: int) -> bool:
    """Returns True if the same request was made before. The caller holds the job's lock."""
    new_row = IdempotencyRow(job.project, once.key, once.body_sha256, job.id, None, now)
    holder = idempotency.take(conn, new_row)
    if (holder.body_sha256, holder.job_id) != (once.body_sha256, job.id):
        raise IdempotencyMismatch(
            f"the Idempotency-Key {once.key!r} was used for another request, on job {holder.job_id}",
            hint="use a new key for every command, or send the first request again",
        )
    return holder is not new_row


_RESUME_FIRST = "resume the job, and send the command once it runs; a resume itself can change max_steps"
_LATER = {
    JobState.QUEUED: "send the command once the job runs",
    JobState.STARTING: "the job starts in a moment: send the command once it runs",
    JobState.PAUSED: _RESUME_FIRST,
    JobState.FAILED: _RESUME_FIRST,
    JobState.CANCELLED: _RESUME_FIRST,
}


def _problems(job: JobRow, request: Do, earlier_commands: list[Command]) -> Iterator[Problem]:
    if request == Do():
        hint = 'for example {"save": true} or {"set": {"learning_rate": 1e-5}}'
        yield Problem("", "nothing_to_do", "the request has no command", hint)
    spec = JobSpec.parse(read_spec(job.spec))
    if why := _why_no_commands(spec):
        fields = {"save": request.save, "evaluate": request.evaluate, "set": request.arguments}
        yield from (Problem(f"/{name}", "no_such_loop", why) for name, value in fields.items() if value)
    elif not spec.is_script:
        yield from _problems_of_the_spec(job, spec, request.arguments, earlier_commands)


def _why_no_commands(spec: JobSpec) -> str | None:
    """Returns the reason why this job cannot carry out commands, such as a new learning rate. None if it can."""
    if spec.loop is not None and not spec.is_script:
        return "the job has a loop of its own, which receives stops and no other commands"
    if spec.loop is None and spec.data.train is None:
        return "the job does not train, so it has no step after which to do this"
    return None


def _problems_of_the_spec(
    job: JobRow, spec: JobSpec, new_values: dict[str, Any], earlier_commands: list[Command]
) -> Iterator[Problem]:
    """Yields the problems of the job's spec with the wanted values, and with the values of all earlier commands."""
    if spec.optimizers and isinstance(rate := new_values.get("learning_rate"), float):
        detail = f"the job has several optimizers: {', '.join(optimizer.id for optimizer in spec.optimizers)}"
        hint = f"name one: {json.dumps({'learning_rate': {spec.optimizers[0].id: rate}})}"
        yield Problem("/set/learning_rate", "disagreement", detail, hint)
        new_values = {name: value for name, value in new_values.items() if name != "learning_rate"}
    document = read_spec(job.spec)
    training: dict[str, Any] = {**document["training"]}
    for arguments in (*(command.set for command in earlier_commands), new_values):
        training |= {name: value for name, value in arguments.items() if not isinstance(value, Mapping)}
    try:
        JobSpec.parse({**document, "training": training})
    except InvalidSpec as invalid:
        for problem in invalid.problems:
            name = problem.pointer.removeprefix("/training/").partition("/")[0]
            pointer = f"/set{problem.pointer.removeprefix('/training')}" if name in new_values else "/set"
            yield Problem(pointer, problem.code, problem.detail, problem.hint)
