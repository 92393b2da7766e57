"""Wakes the readers of live events. Each reader reads SQL in a loop, and readers with the same cursor share a read.

    async with tail.watch(project, job) as channel:
        page = await channel.after(cursor, view)    # the events after the cursor, at once, or none
        await channel.news(page)                    # waits until there may be events after the page

A reader of many jobs joins and leaves the channel of each job, and is called with the jobs that have new events.

A wake-up only means that the reader should read again. Wake-ups may be lost, repeated or late, and a reader that is
woken without new events reads an empty page. So old and live events are read by the same loop.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import NamedTuple

from sqlalchemy import Connection

from footplate.contract.errors import FootplateError
from footplate.contract.events import Kind
from footplate.contract.ids import JobId
from footplate.contract.lifecycle import JobState
from service.end_tasks import end_tasks
from service.store import events, job_list, jobs
from service.store.database import Database
from service.store.job_list import JobFilter, JobHead
from service.store.row_types import EventRow
from service.store.times import now_ms

PAGE_EVENTS = 128
"""The size of a page, some 32 KiB as text, so that a reader that stops reading costs little memory."""
PAGES_KEPT = 8
"""The pages that are kept per job. Readers that replay side by side share them."""
FALLBACK_SECONDS = 1.0
"""The interval at which watched jobs are read without a wake-up, because wake-ups may be lost."""
LOOK_SECONDS = 1.0
"""The seconds for which readers share one result of the search for jobs to follow."""
WINDOW_MS = 60_000
"""The age up to which jobs are found even if they have ended. A commit takes less time, and clocks differ by less."""
MOST_JOBS = 1000
"""The most jobs that one reader follows."""


@dataclass(frozen=True, slots=True)
class View:
    """The kinds of events that a reader wants, and their format. Readers with equal views share pages."""

    render: Callable[[Sequence[EventRow]], bytes]
    kinds: frozenset[Kind] | None = None


@dataclass(frozen=True, slots=True)
class EventPage:
    """The events after a cursor, in order, with the cursor of the next page."""

    body: bytes
    last: int
    """The cursor of the next page."""
    head: int
    """The number of the job's newest event, read in the same snapshot."""
    state: JobState
    version: int
    """The number of wake-ups of the job before this page was read."""

    @property
    def is_caught_up(self) -> bool:
        return self.last >= self.head

    @property
    def is_end(self) -> bool:
        """Returns True if the job has ended, and its history is complete with this page."""
        return self.state.is_terminal and self.is_caught_up


class Channel:
    """A job that readers follow, with its pages in memory."""

    def __init__(self, db: Database, project: str, job: JobId) -> None:
        self.project, self.job = project, job
        self.readers = 0
        self.listeners: set[Callable[[JobId], None]] = set()
        """Functions that are called with the job at each wake-up. They must not block."""
        self.head = 0
        self.is_closed = False
        self._db = db
        self._version = 0
        self._woken = asyncio.Event()
        self._pages: OrderedDict[tuple[int, View], asyncio.Task[EventPage]] = OrderedDict()

    def wake(self) -> None:
        self._version += 1
        self._woken.set()
        self._woken = asyncio.Event()
        for listener in self.listeners:
            listener(self.job)

    async def after(self, cursor: int, view: View) -> EventPage:
        """Returns the events after the cursor. Raises NotFound if the job was deleted."""
        key = (cursor, view)
        task = self._pages.get(key)
        if task is None or self._is_stale(task):
            task = self._pages[key] = asyncio.create_task(self._read(cursor, view))
            while len(self._pages) > (PAGES_KEPT if self.readers > 1 else 1):
                self._pages.popitem(last=False)
        # A reader that disconnects must not cancel the read for other readers.
        return await asyncio.shield(task)

    def forget_pages(self) -> None:
        """Deletes the cached pages if this job has only one reader.

        A reader that follows a thousand jobs would otherwise keep a page of each in memory.
        """
        if self.readers == 1:
            self._pages.clear()

    async def news(self, page: EventPage) -> None:
        """Waits until something may have happened since this page was read."""
        while self._version == page.version:
            await self._woken.wait()

    def _is_stale(self, task: asyncio.Task[EventPage]) -> bool:
        """Returns True if a cached page must be read again.

        A page whose read failed is always read again, and the newest page of a job after each wake-up.
        """
        if not task.done():
            return False
        if task.cancelled() or task.exception():
            return True
        page = task.result()
        return page.is_caught_up and page.version != self._version

    async def _read(self, cursor: int, view: View) -> EventPage:
        version = self._version
        page = await self._db.read(_look, self.project, self.job, cursor, view, version)
        self.head = page.head
        return page


def _look(connection: Connection, project: str, job: JobId, cursor: int, view: View, version: int) -> EventPage:
    row = jobs.get(connection, project, job)
    rows = events.after(connection, job, cursor, PAGE_EVENTS, view.kinds)
    is_full = len(rows) == PAGE_EVENTS
    # Job and events were read in one snapshot. So the events up to `last_no` that are not in `rows` have other kinds.
    last = rows[-1].no if is_full else max(row.last_no, cursor)
    return EventPage(view.render(rows) if rows else b"", last, row.last_no, row.state, version)


class JobsSeen(NamedTuple):
    at: int
    """The time of the search, in milliseconds.

    All matching jobs older than WINDOW_MS are in this or an earlier result.
    """
    heads: list[JobHead]
    """The jobs, newest first. If there are MOST_JOBS + 1, further jobs match."""


class Tail:
    """All jobs that readers in this process follow. `wake` may be called from any thread."""

    def __init__(self, db: Database) -> None:
        self._db = db
        self._looks: dict[JobFilter, tuple[float, asyncio.Task[JobsSeen]]] = {}
        """The newest search for each filter, which all readers with this filter share for a second."""
        self._channels: dict[JobId, dict[str, Channel]] = {}
        """Channels by job and project, because a request with the wrong project must not get the owner's events."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = 0
        self._poll: asyncio.Task[None] | None = None
        self.is_closed = False

    def wake(self, job_ids: Iterable[JobId]) -> None:
        """Wakes the readers of these jobs, which may have new events."""
        if self._loop is None:
            return
        if threading.get_ident() == self._thread:
            self._wake(job_ids)
        elif watched_jobs := [job for job in job_ids if job in self._channels]:
            self._loop.call_soon_threadsafe(self._wake, watched_jobs)

    def _wake(self, job_ids: Iterable[JobId]) -> None:
        for job in job_ids:
            for channel in self._channels.get(job, {}).values():
                channel.wake()

    @asynccontextmanager
    async def watch(self, project: str, job: JobId) -> AsyncIterator[Channel]:
        channel = self.join(project, job)
        try:
            yield channel
        finally:
            self.leave(channel)

    def join(self, project: str, job: JobId) -> Channel:
        """Joins a job's channel. The caller must call `leave` at the end."""
        if self._poll is None:
            self._loop, self._thread = asyncio.get_running_loop(), threading.get_ident()
            self._poll = asyncio.create_task(self._look_anyway())
        channels = self._channels.setdefault(job, {})
        channel = channels.get(project)
        if channel is None:
            channel = channels[project] = Channel(self._db, project, job)
        channel.readers += 1
        return channel

    def leave(self, channel: Channel) -> None:
        channels = self._channels[channel.job]
        channel.readers -= 1
        if not channel.readers:
            del channels[channel.project]
        if not channels:
            del self._channels[channel.job]

    async def look(self, filter: JobFilter) -> JobsSeen:
        """Returns the jobs that match the filter, from a search that is at most a second old."""
        now = time.monotonic()
        begun_at, task = self._looks.get(filter, (-LOOK_SECONDS, None))
        if task is None or now - begun_at >= LOOK_SECONDS:
            self._looks = {key: look for key, look in self._looks.items() if now - look[0] < LOOK_SECONDS}
            begun_at, task = self._looks[filter] = (now, asyncio.create_task(self.since(filter, now_ms() - WINDOW_MS)))
        return await asyncio.shield(task)

    async def since(self, filter: JobFilter, moment: int) -> JobsSeen:
        """Returns the jobs that match the filter. Jobs created since `moment` are included even if they have ended."""
        at = now_ms()
        heads = await self._db.read(job_list.to_follow, filter, MOST_JOBS + 1, moment)
        return JobsSeen(at, heads)

    async def _look_anyway(self) -> None:
        while True:
            await asyncio.sleep(FALLBACK_SECONDS)
            watched_jobs = list(self._channels)
            # If SQL is unreachable, the readers themselves get the error.
            with suppress(FootplateError):
                heads = await self._db.read(jobs.heads, watched_jobs) if watched_jobs else {}
                # A deleted job is not in `heads`. Its readers are woken, too, and then see that the job is gone.
                channels = [channel for job in watched_jobs for channel in self._channels.get(job, {}).values()]
                self._wake({channel.job for channel in channels if channel.head != heads.get(channel.job)})

    async def close(self) -> None:
        """Ends every reader's loop, so that the server can stop."""
        self.is_closed = True
        if self._poll is not None:
            await end_tasks(self._poll)
        for channels in self._channels.values():
            for channel in channels.values():
                channel.is_closed = True
                channel.wake()
