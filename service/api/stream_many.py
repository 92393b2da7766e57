"""Many jobs on one websocket: those that are named, those that match, and those that come to match later.

    {"since": "2026-01-01T12:00:00.000Z"}                               with a filter: what to come back with
    {"job": "job_…", "events": […]}  {"job": "job_…", "caught_up": 12}  {"job": "job_…", "end": "succeeded", "last": 99}

One loop over SQL as for one job: each that has news is read on from its own cursor, one after the other, so that no
flood of one keeps another waiting. Jobs that match join when they are seen, and stay to their end.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial

from fastapi import APIRouter, WebSocket

from footplate.contract.errors import NotFound, Problem, Unavailable
from footplate.contract.events import Kind
from footplate.contract.ids import JobId
from footplate.contract.lifecycle import JobState
from service.api.history import read_kinds
from service.api.listing import read_states
from service.api.stream import read_number, seconds_between, serve
from service.deps import Services, StrictRoute, job_id
from service.events.job_watch import LOOK_SECONDS, MOST, WINDOW_MS
from service.events.tail import Channel, Page, View
from service.problems import InvalidQuery, comma_list
from service.server import text_frame
from service.store import job_list
from service.store.job_list import NOT_OVER, JobFilter, id_at
from service.store.rows import EventRow
from service.store.times import now_ms, text_of

router = APIRouter(route_class=StrictRoute, tags=["live"])

MOST_NAMED = 150
"""With their cursors they fit into an address, of which a websocket's may have 8 KiB."""
MOST_REMEMBERED = 10_000
KNOWN = ("jobs", "tag", "state", "since", "kinds", "max_hz")


@router.websocket("/stream")
async def stream_many(websocket: WebSocket) -> None:
    @asynccontextmanager
    async def opened(services: Services) -> AsyncIterator[Crowd]:
        crowd = Crowd(services, Wanted.of(websocket.query_params, services.project))
        try:
            await crowd.gather()
            yield crowd
        finally:
            crowd.dissolve()

    await serve(websocket, KNOWN, opened)


@dataclass(frozen=True, slots=True)
class Wanted:
    project: str
    named: Mapping[JobId, int]
    """Where to begin, by job."""
    filter: JobFilter | None
    """None: those that are named, and no other."""
    since: int | None
    kinds: frozenset[Kind] | None
    seconds_between: float

    @classmethod
    def of(cls, query: Mapping[str, str], project: str) -> Wanted:
        tag, states, since = query.get("tag"), _states(query.get("state")), _moment(query.get("since"))
        if tag == "":
            raise InvalidQuery([Problem("/query/tag", "invalid_parameter", "names no tag", "leave it out for any")])
        filter = JobFilter(project, states=states, tag=tag)
        is_open = "jobs" not in query or bool({"tag", "state", "since"} & set(query))
        return cls(
            project=project,
            named=_named(query.get("jobs")),
            filter=filter if is_open else None,
            since=since,
            kinds=read_kinds(query.get("kinds")),
            seconds_between=seconds_between(query.get("max_hz")),
        )


@dataclass(slots=True)
class Followed:
    channel: Channel
    cursor: int
    is_live: bool = False


class Crowd:
    """The jobs that one socket follows."""

    def __init__(self, services: Services, wanted: Wanted) -> None:
        self._tail, self._db, self._wanted = services.tail, services.db, wanted
        self._view = View(_events_frame, wanted.kinds)
        self._followed: dict[JobId, Followed] = {}
        self._over: dict[JobId, int] = {}
        """Where those ended that may come back: a resumed job goes on behind what was told."""
        self._news: dict[JobId, None] = {}
        """Those to look at, in turn."""
        self._heard: dict[JobId, None] = {}
        """Those of which there is news since: they are looked at no more often than this reader wants to be told."""
        self._something = asyncio.Event()
        self._quiet_until = 0.0
        self._unsaid: list[bytes] = []
        self._look_at = 0.0
        self._since = now_ms() if wanted.since is None else wanted.since
        self._left_out = 0

    @property
    def is_closed(self) -> bool:
        return self._tail.is_closed

    @property
    def place(self) -> str:
        return "the last `no` of each job: jobs=<job>:<no>,…"

    async def gather(self) -> None:
        """Who is there at the start. Raises NotFound and InvalidQuery, before anything is promised."""
        named = self._wanted.named
        heads = await self._db.read(partial(job_list.heads, project=self._wanted.project, job_ids=list(named)))
        for job, cursor in named.items():
            if job in heads and cursor > heads[job].last_no:
                detail = f"{cursor} lies beyond the last event of {job}, which is {heads[job].last_no}"
                raise InvalidQuery([Problem("/query/jobs", "bad_cursor", detail, "start with the job alone")])
            if job in heads:
                self._join(job, cursor)
            elif cursor:
                self._unsaid.append(_end_frame(job, "deleted", cursor))
            else:
                raise NotFound(f"there is no job {job!r} in this project", hint="GET /jobs lists them")
        if self._wanted.filter is not None:
            await self._gather_those_that_match(self._wanted.filter)

    async def _gather_those_that_match(self, filter: JobFilter) -> None:
        opened, since = id_at(now_ms()), self._since - WINDOW_MS if self._wanted.since is None else self._since
        sight = await self._tail.lookout.since(filter, since)
        if len(sight.heads) > MOST:
            detail = f"more than {MOST:,} jobs match, and one stream follows no more"
            raise InvalidQuery([Problem("/query", "too_many_jobs", detail, "name a tag, or states")])
        if self._wanted.since is None:
            # Over before anybody asked: not told, but followed if somebody resumes them.
            self._over |= {head.job: head.last_no for head in sight.heads if head.is_over and head.job < opened}
        self._take_in(sight.heads)
        self._unsaid.append(_frame(f'{{"since":"{text_of(self._since)}"}}'))
        self._look_at = time.monotonic() + LOOK_SECONDS

    def dissolve(self) -> None:
        for followed in self._followed.values():
            self._leave(followed)

    async def frames(self) -> AsyncIterator[bytes]:
        """Everything, until all that were named have ended; with a filter until the service stops."""
        while not self.is_closed:
            self._take_up()
            if self._unsaid:
                yield b"".join(self._unsaid)
                self._unsaid.clear()
            elif self._wanted.filter is not None and time.monotonic() >= self._look_at:
                await self._look_around(self._wanted.filter)
            elif self._news:
                job = next(iter(self._news))
                del self._news[job]
                yield await self._read(job)
            elif self._followed or self._wanted.filter is not None:
                await self._wait()
            else:
                return

    def _take_up(self) -> None:
        """By the clock, not when all is read: where something comes with every look there is always more to read."""
        if self._heard and time.monotonic() >= self._quiet_until:
            self._news |= self._heard
            self._heard.clear()
            self._quiet_until = time.monotonic() + self._wanted.seconds_between

    async def _wait(self) -> None:
        if self._heard:
            await asyncio.sleep(max(0.0, self._quiet_until - time.monotonic()))
            return
        self._something.clear()
        until_look = self._look_at - time.monotonic() if self._wanted.filter is not None else None
        with suppress(TimeoutError):
            async with asyncio.timeout(until_look):
                await self._something.wait()

    async def _read(self, job: JobId) -> bytes:
        """What there is to say of one job, up to a page."""
        followed = self._followed.get(job)
        if followed is None:
            return b""
        try:
            page = await followed.channel.after(followed.cursor, self._view)
        except NotFound:
            return self._ended(job, "deleted")
        except Unavailable as error:
            self._news[job] = None
            await asyncio.sleep(error.retry_after_seconds)
            return b""
        followed.cursor = page.last
        followed.channel.forget_pages()
        if not page.is_caught_up:
            self._news[job] = None
            return page.body
        return page.body + self._caught_up(job, followed, page)

    def _caught_up(self, job: JobId, followed: Followed, page: Page) -> bytes:
        said = b"" if followed.is_live else _frame(f'{{"job":"{job}","caught_up":{page.last}}}')
        followed.is_live = True
        return said + self._ended(job, page.state) if page.is_end else said

    def _ended(self, job: JobId, how: str) -> bytes:
        followed = self._followed.pop(job)
        self._leave(followed)
        if self._wanted.filter is not None:
            self._over[job] = followed.cursor
            if len(self._over) > MOST_REMEMBERED:
                del self._over[next(iter(self._over))]
        return _end_frame(job, how, followed.cursor)

    async def _look_around(self, filter: JobFilter) -> None:
        """SQL that is away is looked at again: who comes meanwhile is seen later."""
        self._look_at = time.monotonic() + LOOK_SECONDS
        with suppress(Unavailable):
            sight = await self._tail.lookout.look(filter)
            self._take_in(sight.heads)
            if sight.at - WINDOW_MS > self._since + WINDOW_MS:
                self._since = sight.at - WINDOW_MS
                self._unsaid.append(_frame(f'{{"since":"{text_of(self._since)}"}}'))

    def _take_in(self, heads: Sequence[job_list.Head]) -> None:
        """Those that have something to tell which was not told yet."""
        new = [head for head in heads if head.job not in self._followed and head.last_no > self._over.get(head.job, 0)]
        room = max(0, MOST - len(self._followed))
        # The oldest first: a new one will be in sight for longer.
        for head in new[::-1][:room]:
            self._join(head.job, self._over.pop(head.job, 0))
        if (left_out := max(0, len(new) - room)) != self._left_out:
            self._left_out = left_out
            self._unsaid.append(_frame(f'{{"left_out":{left_out}}}'))

    def _join(self, job: JobId, cursor: int) -> None:
        channel = self._tail.join(self._wanted.project, job)
        channel.listeners.add(self._hear)
        self._followed[job] = Followed(channel, cursor)
        self._hear(job)

    def _leave(self, followed: Followed) -> None:
        followed.channel.listeners.discard(self._hear)
        self._tail.leave(followed.channel)

    def _hear(self, job: JobId) -> None:
        self._heard[job] = None
        self._something.set()


# What the address says ------------------------------------------------------------------------------------------------


def _named(text: str | None) -> dict[JobId, int]:
    """`job_a,job_b:17`: the second from behind its event 17 on."""
    if text is None:
        return {}
    found: dict[JobId, int] = {}
    for one in comma_list(text, "jobs", MOST_NAMED):
        name, _, cursor = one.partition(":")
        job = job_id(name)
        if job in found:
            raise InvalidQuery([Problem("/query/jobs", "duplicate_job", f"{job} is there twice, once is enough")])
        found[job] = read_number(cursor or None, "jobs", 0)
    return found


def _states(text: str | None) -> tuple[JobState, ...]:
    found = read_states(text)
    if over := [state.value for state in found if state not in NOT_OVER]:
        detail = f"a job joins before it is {over[0]}, and is followed until then"
        hint = f"one or more of: {', '.join(NOT_OVER)}"
        raise InvalidQuery([Problem("/query/state", "state_is_an_end", detail, hint)])
    return tuple(found)


def _moment(text: str | None) -> int | None:
    if text is None:
        return None
    try:
        found = datetime.fromisoformat(text)
        if found.tzinfo is None:
            raise ValueError
        return round(found.astimezone(UTC).timestamp() * 1000)
    except (ValueError, OverflowError):
        detail = f"{text[:40]!r} is no moment with a time zone, like 2026-01-01T12:00:00Z"
        raise InvalidQuery([Problem("/query/since", "invalid_parameter", detail)]) from None


# Frames ---------------------------------------------------------------------------------------------------------------


def _events_frame(rows: Sequence[EventRow]) -> bytes:
    return _frame(f'{{"job":"{rows[0].job_id}","events":[{",".join([row.as_json() for row in rows])}]}}')


def _end_frame(job: JobId, how: str, last: int) -> bytes:
    return _frame(f'{{"job":"{job}","end":"{how}","last":{last}}}')


def _frame(text: str) -> bytes:
    return text_frame(text.encode())
