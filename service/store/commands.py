"""Statements about live commands, which users send to running jobs with POST /jobs/{job}/do.

A row stays until its command is carried out. If the command changed arguments, the row stays for later attempts, which
apply the changes again.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from typing import Any

from sqlalchemy import Connection, bindparam, delete, insert, select, update

from footplate.contract.ids import ClaimId, JobId
from footplate.contract.messages import Command
from service.store.tables import IS_OPEN_COMMAND, jobs, live_commands, sources

_COLUMNS = (live_commands.c.no, live_commands.c.body, live_commands.c.step)
_OF_JOB = select(*_COLUMNS).where(live_commands.c.job_id == bindparam("job_id")).order_by(live_commands.c.no)
_OPEN_OF_JOB = _OF_JOB.where(IS_OPEN_COMMAND).where(live_commands.c.no > bindparam("after"))
_UNDONE_BY_CLAIM = (
    select(sources.c.claim, *_COLUMNS)
    .select_from(live_commands.join(jobs, jobs.c.id == live_commands.c.job_id))
    .join(sources, (sources.c.job_id == jobs.c.id) & (sources.c.attempt == jobs.c.attempt))
    .where(IS_OPEN_COMMAND, sources.c.claim.is_not(None), sources.c.ended_at.is_(None))
    .order_by(live_commands.c.no)
)


def insert_command(conn: Connection, job_id: JobId, command: Command) -> None:
    conn.execute(
        insert(live_commands), {"job_id": job_id, "no": command.no, "body": _body(command), "step": command.step}
    )


def of_job(conn: Connection, job_id: JobId) -> list[Command]:
    """Returns the stored commands of a job, carried out or not, in the order of their requests."""
    return [_to_command(row) for row in conn.execute(_OF_JOB, {"job_id": job_id})]


def undone(conn: Connection, job_id: JobId, after: int = 0) -> list[Command]:
    """Returns the commands that are not carried out yet, from events with a number above `after`."""
    return [_to_command(row) for row in conn.execute(_OPEN_OF_JOB, {"job_id": job_id, "after": after})]


def undone_by_claim(conn: Connection) -> dict[ClaimId, list[Command]]:
    """Returns the commands of running jobs that are not carried out yet. The keys are claims of running attempts."""
    by_claim: dict[ClaimId, list[Command]] = {}
    for row in conn.execute(_UNDONE_BY_CLAIM):
        by_claim.setdefault(row.claim, []).append(_to_command(row))
    return by_claim


def done(conn: Connection, job_id: JobId, no: int, step: int, was_set: Collection[str], *, evaluated: bool) -> None:
    """Records that training carried out command `no` after `step`.

    The row stays if the command changed arguments or ran an evaluation. Otherwise the row is deleted.
    """
    condition = (live_commands.c.job_id == job_id) & (live_commands.c.no == no) & IS_OPEN_COMMAND
    row = conn.execute(select(*_COLUMNS).where(condition)).one_or_none()
    if row is None:
        return
    command = _to_command(row)
    values = {name: value for name, value in command.set.items() if name in was_set}
    if values or evaluated:
        remaining_command = Command(no=no, evaluate=evaluated and command.evaluate, set=values)
        conn.execute(update(live_commands).where(condition).values(body=_body(remaining_command), step=step))
    else:
        conn.execute(delete(live_commands).where(condition))


def forget_set(conn: Connection, job_id: JobId, names: Collection[str]) -> None:
    """Removes these arguments from all commands of a job, because a later request has set them."""
    for command in of_job(conn, job_id):
        values = {name: value for name, value in command.set.items() if name not in names}
        if values != command.set:
            condition = (live_commands.c.job_id == job_id) & (live_commands.c.no == command.no)
            conn.execute(
                update(live_commands).where(condition).values(body=_body(command.model_copy(update={"set": values})))
            )


def forget_after(conn: Connection, job_id: JobId, step: int) -> None:
    """Deletes the commands of a job that were carried out after a later step than `step`."""
    conn.execute(delete(live_commands).where(live_commands.c.job_id == job_id, live_commands.c.step > step))


def drop_undone(conn: Connection, job_id: JobId) -> list[Command]:
    """Deletes and returns the commands of a job that are not carried out yet."""
    open_commands = undone(conn, job_id)
    if open_commands:
        conn.execute(delete(live_commands).where(live_commands.c.job_id == job_id).where(IS_OPEN_COMMAND))
    return open_commands


def _body(command: Command) -> str:
    return json.dumps({"save": command.save, "evaluate": command.evaluate, "set": command.set})


def _to_command(row: Any) -> Command:
    return Command(no=row.no, step=row.step, **json.loads(row.body))
