"""Many jobs on one websocket: named jobs, jobs that match a filter, and jobs that match it later.

    {"since": "2026-01-01T12:00:00.000Z"}                               with a filter: the `since` to reconnect with
    {"job": "job_…", "events": […]}  {"job": "job_…", "caught_up": 12}  {"job": "job_…", "end": "succeeded", "last": 99}

The loop reads SQL, as for one job. Changed jobs are read one after the other, a page at a time, so a job with many
events does not delay the others. A job that matches the filter is followed until it ends.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass

from fastapi import APIRouter, WebSocket

from footplate.contract.errors import NotFound, Problem, Unavailable
from footplate.contract.ids import JobId
from service.api.stream import serve
from service.api.stream_selection import PARAMETERS, StreamSelection
from service.deps import Services, StrictRoute
from service.events.tail import LOOK_SECONDS, MOST_JOBS, WINDOW_MS, Channel, View
from service.problems import InvalidQuery
from service.server import text_frame
from service.store import job_list
from service.store.job_list import JobFilter, id_at
from service.store.row_types import EventRow
from service.store.times import now_ms, text_of

router = APIRouter(route_class=StrictRoute, tags=["live"])

MOST_REMEMBERED = 10_000
"""The number of ended jobs whose cursors are remembered."""


@router.websocket("/stream")
async def stream_many(websocket: WebSocket) -> None:
    @asynccontextmanager
    async def opened(services: Services) -> AsyncIterator[ManyJobs]:
        many = ManyJobs(services, StreamSelection.of(websocket.query_params, services.project))
        try:
            await many.open()
            yield many
        finally:
            many.close()

    await serve(websocket, PARAMETERS, opened)


@dataclass(slots=True)
class Followed:
    channel: Channel
    cursor: int
    is_live: bool = False


class ManyJobs:
    """The jobs that one websocket follows, with the cursor of each."""

    def __init__(self, services: Services, selection: StreamSelection) -> None:
        self._tail, self._db, self._selection = services.tail, services.db, selection
        self._view = View(_events_frame, selection.kinds)
        self._followed: dict[JobId, Followed] = {}
        self._ended_at: dict[JobId, int] = {}
        """The cursors of ended jobs. A job that is resumed continues after its cursor."""
        self._to_read: dict[JobId, None] = {}
        """The jobs to read now, in this order."""
        self._changed: dict[JobId, None] = {}
        """The jobs that have changed since they were last read. They are read at most `max_hz` times a second."""
        self._wake = asyncio.Event()
        self._quiet_until = 0.0
        self._due_frames: list[bytes] = []
        self._look_at = 0.0
        self._since = now_ms() if selection.since is None else selection.since
        self._left_out = 0

    @property
    def is_closed(self) -> bool:
        return self._tail.is_closed

    @property
    def place(self) -> str:
        return "the last `no` of each job: jobs=<job>:<no>,…"

    async def open(self) -> None:
        """Starts to follow the jobs that exist now. Raises NotFound and InvalidQuery before the first frame is sent."""
        named = self._selection.named
        heads = await self._db.read(job_list.heads, self._selection.project, list(named))
        for job, cursor in named.items():
            if job in heads and cursor > heads[job].last_no:
                detail = f"{cursor} lies beyond the last event of {job}, which is {heads[job].last_no}"
                hint = f"send {job} without a number, to start at its first event"
                raise InvalidQuery([Problem("/query/jobs", "bad_cursor", detail, hint)])
            if job in heads:
                self._join(job, cursor)
            elif cursor:
                self._due_frames.append(_end_frame(job, "deleted", cursor))
            else:
                raise NotFound(f"there is no job {job!r} in this project", hint="GET /jobs lists them")
        if self._selection.filter is not None:
            await self._join_matching(self._selection.filter)

    async def _join_matching(self, filter: JobFilter) -> None:
        id_now, since = id_at(now_ms()), self._since - WINDOW_MS if self._selection.since is None else self._since
        matching = await self._tail.since(filter, since)
        if len(matching.heads) > MOST_JOBS:
            detail = f"more than {MOST_JOBS:,} jobs match, and a stream follows at most that many"
            raise InvalidQuery([Problem("/query", "too_many_jobs", detail, "name a tag, or states")])
        if self._selection.since is None:
            # Jobs that ended before this socket was opened are not sent, but are followed if they are resumed.
            self._ended_at |= {head.job: head.last_no for head in matching.heads if head.is_over and head.job < id_now}
        self._join_new(matching.heads)
        self._due_frames.append(_frame(f'{{"since":"{text_of(self._since)}"}}'))
        self._look_at = time.monotonic() + LOOK_SECONDS

    def close(self) -> None:
        for followed_job in self._followed.values():
            self._leave(followed_job)

    async def frames(self) -> AsyncIterator[bytes]:
        """Yields frames until all named jobs have ended, or with a filter until the service stops."""
        while not self.is_closed:
            self._schedule_changed()
            if self._due_frames:
                yield b"".join(self._due_frames)
                self._due_frames.clear()
            elif self._selection.filter is not None and time.monotonic() >= self._look_at:
                await self._look_for_jobs(self._selection.filter)
            elif self._to_read:
                job = next(iter(self._to_read))
                del self._to_read[job]
                yield await self._read(job)
            elif self._followed or self._selection.filter is not None:
                await self._wait()
            else:
                return

    def _schedule_changed(self) -> None:
        """Schedules the changed jobs to be read, if `max_hz` allows it.

        This does not wait until all scheduled jobs are read, because a job that always changes always has more.
        """
        if self._changed and time.monotonic() >= self._quiet_until:
            self._to_read |= self._changed
            self._changed.clear()
            self._quiet_until = time.monotonic() + self._selection.seconds_between

    async def _wait(self) -> None:
        if self._changed:
            await asyncio.sleep(max(0.0, self._quiet_until - time.monotonic()))
            return
        self._wake.clear()
        until_look = self._look_at - time.monotonic() if self._selection.filter is not None else None
        with suppress(TimeoutError):
            async with asyncio.timeout(until_look):
                await self._wake.wait()

    async def _read(self, job: JobId) -> bytes:
        """Returns the frames of one job's next events, up to a page."""
        followed_job = self._followed.get(job)
        if followed_job is None:
            return b""
        try:
            page = await followed_job.channel.after(followed_job.cursor, self._view)
        except NotFound:
            return self._ended(job, "deleted")
        except Unavailable as error:
            self._to_read[job] = None
            await asyncio.sleep(error.retry_after_seconds)
            return b""
        followed_job.cursor = page.last
        followed_job.channel.forget_pages()
        if not page.is_caught_up:
            self._to_read[job] = None
            return page.body
        caught_up = b"" if followed_job.is_live else _frame(f'{{"job":"{job}","caught_up":{page.last}}}')
        followed_job.is_live = True
        return page.body + caught_up + (self._ended(job, page.state) if page.is_end else b"")

    def _ended(self, job: JobId, how: str) -> bytes:
        followed_job = self._followed.pop(job)
        self._leave(followed_job)
        if self._selection.filter is not None:
            self._ended_at[job] = followed_job.cursor
            if len(self._ended_at) > MOST_REMEMBERED:
                del self._ended_at[next(iter(self._ended_at))]
        return _end_frame(job, how, followed_job.cursor)

    async def _look_for_jobs(self, filter: JobFilter) -> None:
        """Starts to follow the jobs that match the filter now. If SQL is unreachable, the next search finds them."""
        self._look_at = time.monotonic() + LOOK_SECONDS
        with suppress(Unavailable):
            matching = await self._tail.look(filter)
            self._join_new(matching.heads)
            if matching.at - WINDOW_MS > self._since + WINDOW_MS:
                self._since = matching.at - WINDOW_MS
                self._due_frames.append(_frame(f'{{"since":"{text_of(self._since)}"}}'))

    def _join_new(self, heads: Sequence[job_list.JobHead]) -> None:
        """Starts to follow those jobs that have events which this socket has not sent."""
        new_heads = [
            head for head in heads if head.job not in self._followed and head.last_no > self._ended_at.get(head.job, 0)
        ]
        room = max(0, MOST_JOBS - len(self._followed))
        # If there is no room for all, the oldest jobs are followed first. The next search finds the newer ones again.
        for head in new_heads[::-1][:room]:
            self._join(head.job, self._ended_at.pop(head.job, 0))
        if (left_out := max(0, len(new_heads) - room)) != self._left_out:
            self._left_out = left_out
            self._due_frames.append(_frame(f'{{"left_out":{left_out}}}'))

    def _join(self, job: JobId, cursor: int) -> None:
        channel = self._tail.join(self._selection.project, job)
        channel.listeners.add(self._on_news)
        self._followed[job] = Followed(channel, cursor)
        self._on_news(job)

    def _leave(self, followed_job: Followed) -> None:
        followed_job.channel.listeners.discard(self._on_news)
        self._tail.leave(followed_job.channel)

    def _on_news(self, job: JobId) -> None:
        self._changed[job] = None
        self._wake.set()


def _events_frame(rows: Sequence[EventRow]) -> bytes:
    return _frame(f'{{"job":"{rows[0].job_id}","events":[{",".join([row.as_json() for row in rows])}]}}')


def _end_frame(job: JobId, how: str, last: int) -> bytes:
    return _frame(f'{{"job":"{job}","end":"{how}","last":{last}}}')


def _frame(text: str) -> bytes:
    return text_frame(text.encode())
