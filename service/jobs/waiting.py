"""Who waits, in the order in which placement tries them, and how many stand before each, whoever's they are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from sqlalchemy import Connection

from footplate.contract.ids import JobId
from service.jobs.needs import Needs
from service.store import queue
from service.store import waiting as rows
from service.store.queue import Rank
from service.store.waiting import MOST, ReadyRow, WaitingRow

Key = tuple[int, int, int, str]
"""A job's position in the list, from which a reader goes on while the queue moves. It is 0 and the rank of a ready job,
and 1 and the time of a later one: ready jobs come first."""


@dataclass(frozen=True, slots=True)
class Place:
    id: JobId
    key: Key
    number: int | None = None
    """From 1, among the jobs of its pool; None: it may not start yet."""
    yours: int = 0
    """Jobs of its own project before it,"""
    others: int = 0
    """and of others."""


@dataclass(frozen=True, slots=True)
class Page:
    data: list[tuple[Place, WaitingRow]]
    following: Key | None
    """Where the next page begins; None: this is the last."""


def page(conn: Connection, project: str | None, behind: Key | None, limit: int) -> Page:
    """Returns the jobs of a project (None: of any) behind a position. A page may have fewer than `limit` although more
    follow, because it is made from at most `MOST` jobs of all projects."""
    found: list[Place] = []
    last, looked_at = behind, 0
    for key, place in _walk(conn, project, behind):
        last, looked_at = key, looked_at + 1
        if place is not None:
            found.append(place)
        if len(found) > limit or looked_at == MOST:
            break
    else:
        last = None
    seen = rows.seen(conn, [place.id for place in found[:limit]])
    data = [(place, seen[place.id]) for place in found[:limit]]
    return Page(data, found[limit - 1].key if len(found) > limit else last)


def of_job(conn: Connection, project: str | None, job_id: JobId) -> Page:
    """Returns this job alone; nothing if it does not wait."""
    row = rows.seen(conn, [job_id]).get(job_id)
    if row is None or project not in (None, row.project):
        return Page([], None)
    if row.not_before is not None:
        return Page([(Place(row.id, (1, row.not_before, 0, row.id)), row)], None)
    ready = ReadyRow(row.id, row.priority, row.queued_at, row.project, row.shape)
    return Page([(_Ahead(conn, ready.rank).place(ready), row)], None)


def _walk(conn: Connection, project: str | None, behind: Key | None) -> Iterator[tuple[Key, Place | None]]:
    """The jobs of all projects, without a place for those that are not asked for."""
    kind, number, queued_at, job_id = behind or (0, 0, 0, "")
    if kind == 0:
        ahead: _Ahead | None = None
        for row in rows.ready(conn, Rank(number, queued_at, JobId(job_id)) if behind else None):
            ahead = ahead or _Ahead(conn, row.rank if behind else None)
            place = ahead.place(row)
            yield place.key, place if project in (None, row.project) else None
        number, job_id = -1, ""
    for later in rows.later(conn, (number, job_id)):
        key: Key = (1, later.not_before, 0, later.id)
        yield key, Place(later.id, key) if project in (None, later.project) else None


class _Ahead:
    """How many jobs of each project stand before the next one of a pool, counted while the queue is walked."""

    def __init__(self, conn: Connection, rank: Rank | None) -> None:
        """Begins with the job of this rank; None: with the first."""
        self._pools = {head.shape: Needs.from_json(head.needs).pool for head in queue.heads(conn)}
        self._counts: dict[str, Counter[str]] = {pool: Counter() for pool in self._pools.values()}
        for (project, shape), count in (rows.count_ready(conn, before=rank) if rank else {}).items():
            self._counts[self._pools[shape]][project] += count

    def place(self, row: ReadyRow) -> Place:
        before = self._counts[self._pools[row.shape]]
        in_all, yours = before.total(), before[row.project]
        before[row.project] += 1
        return Place(row.id, (0, *row.rank), in_all + 1, yours, in_all - yours)
