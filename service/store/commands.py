"""Statements about live commands (deeds), which users send to running loops.

A row stays while it counts: until the command is carried out, and then for its changes, which later attempts repeat.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from typing import Any

from sqlalchemy import Connection, bindparam, delete, func, insert, select, update

from footplate.contract.ids import ClaimId, JobId
from footplate.contract.messages import Deed
from service.store.tables import IS_OPEN_DEED, deeds, jobs, sources

_OF_JOB = (
    select(deeds.c.no, deeds.c.body, deeds.c.step).where(deeds.c.job_id == bindparam("job_id")).order_by(deeds.c.no)
)
_OPEN_OF_JOB = _OF_JOB.where(IS_OPEN_DEED).where(deeds.c.no > bindparam("after"))
_TO_TELL = (
    select(sources.c.claim, deeds.c.no, deeds.c.body, deeds.c.step)
    .select_from(deeds.join(jobs, jobs.c.id == deeds.c.job_id))
    .join(sources, (sources.c.job_id == jobs.c.id) & (sources.c.attempt == jobs.c.attempt))
    .where(IS_OPEN_DEED, sources.c.claim.is_not(None), sources.c.ended_at.is_(None))
    .order_by(deeds.c.no)
)


def ask(conn: Connection, job_id: JobId, deed: Deed) -> None:
    conn.execute(insert(deeds), {"job_id": job_id, "no": deed.no, "body": _body(deed), "step": deed.step})


def of_job(conn: Connection, job_id: JobId) -> list[Deed]:
    """Returns all commands that count, in the order of their requests."""
    return [_to_deed(row) for row in conn.execute(_OF_JOB, {"job_id": job_id})]


def undone(conn: Connection, job_id: JobId, after: int = 0) -> list[Deed]:
    """Returns the commands after `after` that are not carried out yet."""
    return [_to_deed(row) for row in conn.execute(_OPEN_OF_JOB, {"job_id": job_id, "after": after})]


def to_tell(conn: Connection) -> dict[ClaimId, list[Deed]]:
    """Returns the commands of running jobs that are not carried out yet, by the claim of the running attempt."""
    by_claim: dict[ClaimId, list[Deed]] = {}
    for row in conn.execute(_TO_TELL):
        by_claim.setdefault(row.claim, []).append(_to_deed(row))
    return by_claim


def count(conn: Connection, job_id: JobId) -> int:
    return int(conn.execute(select(func.count()).where(deeds.c.job_id == job_id)).scalar_one())


def done(conn: Connection, job_id: JobId, no: int, step: int, was_set: Collection[str], *, evaluated: bool) -> None:
    """Notes that the loop has carried out a command after this step. A command without lasting effect is deleted."""
    this = (deeds.c.job_id == job_id) & (deeds.c.no == no) & IS_OPEN_DEED
    row = conn.execute(select(deeds.c.no, deeds.c.body, deeds.c.step).where(this)).one_or_none()
    if row is None:
        return
    deed = _to_deed(row)
    kept = {name: value for name, value in deed.set.items() if name in was_set}
    if kept or evaluated:
        again = Deed(no=no, evaluate=evaluated and deed.evaluate, set=kept)
        conn.execute(update(deeds).where(this).values(body=_body(again), step=step))
    else:
        conn.execute(delete(deeds).where(this))


def forget_set(conn: Connection, job_id: JobId, names: Collection[str]) -> None:
    """Removes these arguments from all commands, because something later has set them."""
    for deed in of_job(conn, job_id):
        kept = {name: value for name, value in deed.set.items() if name not in names}
        if kept != deed.set:
            this = (deeds.c.job_id == job_id) & (deeds.c.no == deed.no)
            conn.execute(update(deeds).where(this).values(body=_body(deed.model_copy(update={"set": kept}))))


def drop_undone(conn: Connection, job_id: JobId) -> list[Deed]:
    """Deletes and returns the commands that can no longer be carried out."""
    dropped = undone(conn, job_id)
    if dropped:
        conn.execute(delete(deeds).where(deeds.c.job_id == job_id).where(IS_OPEN_DEED))
    return dropped


def _body(deed: Deed) -> str:
    return json.dumps({"save": deed.save, "evaluate": deed.evaluate, "set": deed.set})


def _to_deed(row: Any) -> Deed:
    return Deed(no=row.no, step=row.step, **json.loads(row.body))
