"""The waiting jobs in the order in which placement tries them, and the number of jobs before each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from sqlalchemy import Connection

from footplate.contract.ids import JobId
from service.jobs.needs import Needs
from service.store import queue
from service.store import waiting as waiting_jobs
from service.store.queue import QueuePosition
from service.store.waiting import MOST, ReadyRow, WaitingRow

Key = tuple[int, int, int, str]
"""A sorting key of all waiting jobs, which is also the cursor of the list. The key of a ready job is 0 and its
position. The key of a delayed job is 1 and the time at which it may start."""


@dataclass(frozen=True, slots=True)
class QueuePlace:
    id: JobId
    key: Key
    number: int | None = None
    """The place of the job among the ready jobs of its pool, counted from 1. None for a delayed job."""
    yours: int = 0
    """The number of jobs of the same project before this job."""
    others: int = 0
    """The number of jobs of other projects before this job."""


@dataclass(frozen=True, slots=True)
class QueuePage:
    data: list[tuple[QueuePlace, WaitingRow]]
    following: Key | None
    """The cursor of the next page. None on the last page."""


def page(conn: Connection, project: str | None, after: Key | None, limit: int) -> QueuePage:
    """Returns the waiting jobs of a project (None means any) after a cursor.

    A page may have fewer than `limit` although more follow, because it is made from at most `MOST` jobs of all
    projects.
    """
    places: list[QueuePlace] = []
    last_key, read_count = after, 0
    for key, place in _walk(conn, project, after):
        last_key, read_count = key, read_count + 1
        if place is not None:
            places.append(place)
        if len(places) > limit or read_count == MOST:
            break
    else:
        last_key = None
    waiting_rows = waiting_jobs.seen(conn, [place.id for place in places[:limit]])
    data = [(place, waiting_rows[place.id]) for place in places[:limit]]
    return QueuePage(data, places[limit - 1].key if len(places) > limit else last_key)


def of_job(conn: Connection, project: str | None, job_id: JobId) -> QueuePage:
    """Returns a page with only this job, or an empty page if the job does not wait or belongs to another project."""
    row = waiting_jobs.seen(conn, [job_id]).get(job_id)
    if row is None or project not in (None, row.project):
        return QueuePage([], None)
    if row.not_before is not None:
        return QueuePage([(_place_of_delayed(row.id, row.not_before), row)], None)
    ready_row = ReadyRow(row.id, row.priority, row.queued_at, row.project, row.shape)
    return QueuePage([(_Ahead(conn, ready_row.position).place(ready_row), row)], None)


def _walk(conn: Connection, project: str | None, after: Key | None) -> Iterator[tuple[Key, QueuePlace | None]]:
    """Yields (key, place) of the waiting jobs of all projects. The place is None for a job of another project."""
    kind, number, queued_at, job_id = after or (0, 0, 0, "")
    if kind == 0:
        ahead: _Ahead | None = None
        for row in waiting_jobs.ready(conn, QueuePosition(number, queued_at, JobId(job_id)) if after else None):
            ahead = ahead or _Ahead(conn, row.position if after else None)
            place = ahead.place(row)
            yield place.key, place if project in (None, row.project) else None
        number, job_id = -1, ""
    for delayed in waiting_jobs.delayed(conn, (number, job_id)):
        place = _place_of_delayed(delayed.id, delayed.not_before)
        yield place.key, place if project in (None, delayed.project) else None


def _place_of_delayed(job_id: JobId, not_before: int) -> QueuePlace:
    return QueuePlace(job_id, key=(1, not_before, 0, job_id))


class _Ahead:
    """Counts the ready jobs before each job, while the jobs are read in their order."""

    def __init__(self, conn: Connection, position: QueuePosition | None) -> None:
        """Counts the jobs before this position. None means that no job comes before."""
        self._pools = {head.shape: Needs.from_json(head.needs).pool for head in queue.heads(conn)}
        self._counts: dict[str, Counter[str]] = {pool: Counter() for pool in self._pools.values()}
        for (project, shape), count in (waiting_jobs.count_ready(conn, before=position) if position else {}).items():
            self._counts[self._pools[shape]][project] += count

    def place(self, row: ReadyRow) -> QueuePlace:
        counts = self._counts[self._pools[row.shape]]
        in_all, in_project = counts.total(), counts[row.project]
        counts[row.project] += 1
        return QueuePlace(row.id, (0, *row.position), in_all + 1, in_project, in_all - in_project)
