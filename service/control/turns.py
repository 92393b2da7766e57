"""The turns of control: each looks, does one thing, and is done. SQL remembers everything between two turns.

A turn that fails half-way is harmless: what it committed is found by the next one, what it did not is done by it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Hashable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

from pydantic import ValidationError
from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError, ResponseError
from sqlalchemy import Connection

from footplate.contract import keys
from footplate.contract.bucket import RemoteStore
from footplate.contract.crash_points import Moment, reached
from footplate.contract.errors import Unavailable
from footplate.contract.ids import JobId, uuid7
from footplate.contract.messages import TO_CONTROL, AttemptBeat, Claim, Message, NodeBeat
from footplate.contract.outbound import Allowed
from service.control.cleanup import Upkeep
from service.control.counters import Counts, Depths
from service.events.entries import Read, apart, as_gap, read_entries
from service.events.ingest import Ingested, ingest
from service.jobs import dispatch
from service.jobs.beat import StopLeft
from service.jobs.dispatch import Bell
from service.jobs.inbox import Heard, answer, words
from service.jobs.place import Glimpse, look, start
from service.jobs.placement import Placement
from service.jobs.rescue import Timers, rescue, stop_left
from service.settings import ServiceSettings
from service.store import queue
from service.store.database import Database, Write
from service.store.queue import BellRow
from service.store.times import now_ms, text_of
from service.webhooks.deliver import Courier

log = logging.getLogger("footplate.control")

T = TypeVar("T")

BLOCK_SECONDS = 1
"""How long a read of Redis may block. Must stay below the socket timeout, or it never returns normally."""
FRESH_SECONDS = 1.5
"""A Redis that has not answered for this long may be frozen: nobody is called silent then."""
SOCKET_SECONDS = 5
RESCUE_SECONDS = 1.0
LOOK_AGAIN_SECONDS = 5.0
"""Placement plans at least this often, whether or not it saw anything new."""
STARTED_AT_ONCE = 32
"""Jobs that one transaction starts: few, because requests wait for it."""
MAX_MESSAGES = 500
MAX_ENTRIES = 64
"""Entries of many events each in one transaction."""
WATERMARK_SECONDS = 24 * 3600
AWAY = (RedisError, OSError, asyncio.TimeoutError)


class NotSure(Exception):
    """Whether this is still the one control: another may have taken over while this one was frozen."""


class Turns:
    """What control knows between two turns: nothing but for how long things have been as they are."""

    def __init__(
        self,
        db: Database,
        settings: ServiceSettings,
        on_events: Callable[[Collection[JobId]], None],
        is_alone: Callable[[], bool] = lambda: True,
    ) -> None:
        """`is_alone` says, without asking anybody, whether no other control can work: asked before each write."""
        self.counts = Counts()
        self._depths, self._unreadable = Depths(), Depths()
        self._oldest_unread: int | None = None
        """When the entry that waits for SQL came into Redis."""
        self.redis_ok = False
        self.poked = asyncio.Event()
        self._writing = asyncio.Lock()
        self._db, self._settings, self._on_events, self._is_alone = db, settings, on_events, is_alone
        self._redis: Redis = Redis.from_url(
            settings.redis,
            socket_timeout=SOCKET_SECONDS,
            socket_connect_timeout=2,
            # Ours is the only retry: redis-py's own would send everything several times into a Redis that stalls.
            retry=Retry(NoBackoff(), 0),
        )
        self._courier = Courier(db.read, self._write, Allowed.of(settings.webhooks_allow))
        self._upkeep = Upkeep(db, self._write, settings.store)
        self._bell = Bell(settings.redis)
        self._bell_thread = ThreadPoolExecutor(1, thread_name_prefix="bell")
        self.begin()

    def begin(self) -> None:
        """As if new: everyone has a full lease, every bell may have to ring, everything may have changed."""
        self._timers = Timers()
        self._room_changed = self._ring_everything = True
        self._glimpse: Glimpse | None = None
        """What placement last saw, when it found nothing more to start."""
        self._placed_at = self._rescued_at = self._redis_heard_at = 0.0
        self._told: set[tuple[str, int]] = set()
        self._bell_thread.submit(_quietly, self._bell.warm)

    async def pause(self) -> None:
        """No turn is taken for a while, and nothing that one has begun goes on."""
        await self._courier.stop()

    async def close(self) -> None:
        await asyncio.to_thread(self._bell_thread.shutdown)
        self._bell.close()
        with suppress(*AWAY):
            await self._redis.aclose()

    def numbers(self) -> dict[str, int]:
        """What was counted, and how late ingest is now."""
        waits_since = self._oldest_unread
        self.counts.webhooks_delivered, self.counts.webhooks_failed = self._courier.delivered, self._courier.failed
        self.counts.ingest_lag_ms = 0 if waits_since is None else max(0, now_ms() - waits_since)
        return self.counts.numbers()

    def sql_is_away(self) -> None:
        """Beats wait unread meanwhile: that is not their senders' silence."""
        self.counts.database_outages += 1
        self._timers.restart_all(time.monotonic())

    def redis_is_away(self) -> None:
        self.counts.redis_outages += self.redis_ok
        self.redis_ok = False

    def _redis_answered(self, after: float) -> None:
        self._redis_heard_at = time.monotonic()
        if not self.redis_ok or after > FRESH_SECONDS:
            # Nobody could be heard: everyone gets a full lease.
            self._timers.restart_all(self._redis_heard_at)
        self.redis_ok = True

    async def _write(self, fn: Write[T]) -> T:
        """One at a time: each locks many jobs, in an order of its own, and two of them would wait for each other."""

        def write(conn: Connection) -> T:
            if not self._is_alone():
                raise NotSure("it has not looked at its lock for a while")
            return fn(conn)

        async with self._writing:
            return await self._db.write(write)

    def _tell(self, job_ids: Iterable[JobId]) -> None:
        if changed := set(job_ids):
            self._on_events(changed)

    # Decide -------------------------------------------------------------------------------------------------------

    async def decide(self) -> None:
        """Waits for a poke or the poll, then places, rings and tells."""
        with suppress(asyncio.TimeoutError):
            async with asyncio.timeout(self._settings.poll_seconds):
                await self.poked.wait()
        self.poked.clear()
        await self.place()
        await self.ring()
        await self.push_words()

    async def place(self) -> None:
        """Looks outside the writer, which serves requests meanwhile; then writes what it found, a little at a time."""
        now, clock = now_ms(), time.monotonic()
        while await self._db.read(lambda conn: queue.has_due(conn, now)):
            await self._write(lambda conn: queue.release(conn, now))
        must_look = self._room_changed or clock - self._placed_at > LOOK_AGAIN_SECONDS
        glimpse, self._glimpse = None if must_look else self._glimpse, None
        self._room_changed = False
        found = await self._db.read(lambda conn: look(conn, unless=glimpse))
        if found.is_news:
            self._placed_at = clock
            await self._start(found.placements, now)
            if found.changed or found.gone:
                await self._write(lambda conn: queue.explain(conn, found.changed, found.gone))
        if not found.placements:
            self._glimpse = found.glimpse

    async def _start(self, placements: Sequence[Placement], now: int) -> None:
        for first in range(0, len(placements), STARTED_AT_ONCE):
            some = placements[first : first + STARTED_AT_ONCE]
            started = await self._write(partial(start, placements=some, now=now))
            if started:
                reached(Moment.AFTER_PLACE_COMMITS)
            self.counts.attempts_placed += len(started)
            self._tell(started)

    async def ring(self) -> None:
        """Publishes from a thread of its own, then marks: a bell may ring twice, never not at all."""
        rows = await self._db.read(dispatch.unclaimed)
        self._timers.forget("bell", but=map(_bell_key, rows))
        clock = time.monotonic()
        if self._ring_everything:
            due, self._ring_everything = rows, False
        else:
            due = dispatch.due(
                rows, lambda row: self._timers.elapsed(_bell_key(row), clock), self._settings.ring_seconds
            )
        if not due:
            return
        rung, error = await asyncio.get_running_loop().run_in_executor(
            self._bell_thread, dispatch.ring_all, self._bell, due
        )
        if rung:
            reached(Moment.AFTER_RING)
            self.counts.bells_rung += len(rung)
            for row in rung:
                self._timers.restart(_bell_key(row), clock)
            await self._write(lambda conn: dispatch.mark_rung(conn, rung, now_ms()))
            reached(Moment.AFTER_RING_COMMITS)
        if error is not None:
            self._ring_everything = True
            raise ConnectionError(f"the bell of {due[len(rung)].node} cannot be rung: {error}") from error

    async def push_words(self) -> None:
        """Tells whoever runs a job that shall stop, or do something, without waiting for its beat. Once for each."""
        stop_left = self._stop_left()
        told = await self._db.read(lambda conn: words(conn, stop_left))
        fresh = [reply for key, reply in told.items() if key not in self._told]
        await self._send([(keys.reply(reply.claim), reply) for reply in fresh])
        self._told = set(told)

    def _stop_left(self) -> StopLeft:
        return partial(stop_left, timers=self._timers, clock=time.monotonic(), settings=self._settings)

    # Listen -------------------------------------------------------------------------------------------------------

    async def read_inbox(self) -> None:
        """Takes what is there, answers it after one transaction. What dies in between is asked again by its sender."""
        asked = time.monotonic()
        first = await self._redis.blpop([keys.INBOX], timeout=BLOCK_SECONDS)
        self._redis_answered(after=time.monotonic() - asked)
        if first is None:
            return
        more = await self._redis.lpop(keys.INBOX, MAX_MESSAGES)
        messages = [message for raw in (first[1], *(more or ())) if (message := self._understood(raw))]
        clock, now = time.monotonic(), now_ms()
        for heard in await self._answer(messages, now):
            if any(isinstance(one, AttemptBeat) for one in messages):
                reached(Moment.AFTER_BEAT_COMMITS)
            if heard.granted:
                reached(Moment.AFTER_GRANT_COMMITS)
            for key, number in heard.alive:
                self._timers.heard(key, number, clock)
            self._count(heard)
            self._tell(heard.jobs)
            if heard.has_new_room or heard.lost or heard.told_to_stop:
                self._look_again()
            await self._send(heard.replies)
            if heard.granted:
                reached(Moment.AFTER_GRANT_TOLD)

    async def _answer(self, messages: Sequence[Claim | AttemptBeat | NodeBeat], now: int) -> list[Heard]:
        """Together; one by one where that fails for what one of them says, so that nobody loses a lease over it."""
        try:
            left = self._stop_left()
            return [await self._write(lambda conn: answer(conn, messages, now, self._settings, left))]
        except (Unavailable, NotSure, *AWAY):
            raise
        except Exception:
            log.exception("a message cannot be answered")
            if len(messages) == 1:
                self.counts.events_dead += 1
                return []
        return [heard for one in messages for heard in await self._answer([one], now)]

    def _understood(self, raw: bytes) -> Claim | AttemptBeat | NodeBeat | None:
        try:
            return TO_CONTROL.validate_json(raw)
        except ValidationError as error:
            self.counts.events_dead += 1
            log.warning("a message that nobody understands: %s", str(error).partition("\n")[0])
            return None

    def _count(self, heard: Heard) -> None:
        self.counts.claims_granted += heard.granted
        self.counts.claims_denied += heard.denied
        self.counts.beats += heard.beats
        self.counts.stale_refused += heard.superseded
        self.counts.attempts_lost += heard.lost
        self.counts.retries.update(heard.retries)
        self.counts.jobs_failed.update(heard.failures)
        self._depths.update(heard.depths)
        self.counts.journal_depth = self._depths.total()
        self._unreadable.update(heard.unreadable)
        self.counts.journals_unreadable = self._unreadable.total()

    async def _send(self, replies: Sequence[tuple[str, Message]]) -> None:
        if not replies:
            return
        async with self._redis.pipeline(transaction=False) as pipeline:
            for key, message in replies:
                pipeline.rpush(key, message.model_dump_json())
                pipeline.expire(key, keys.REPLY_TTL_SECONDS)
            await pipeline.execute()

    def _look_again(self) -> None:
        self._room_changed = True
        self.poked.set()

    async def ingest(self) -> None:
        """Reads from the beginning, always: what was committed has been deleted."""
        answered = await self._redis.xread({keys.EVENTS: "0"}, count=MAX_ENTRIES, block=BLOCK_SECONDS * 1000)
        entries = _entries(answered)
        if not entries:
            self._oldest_unread = None
            return
        now = now_ms()
        self._oldest_unread = int(entries[0][0].partition(b"-")[0])
        read = read_entries([fields.get(b"batch") for _, fields in entries], text_of(now))
        every_done = await self._store(read, now)
        reached(Moment.AFTER_INGEST_COMMITS)
        if any(done.closed for done in every_done):
            reached(Moment.AFTER_CLOSE_COMMITS)
        # Watchers and the acknowledgement are both after the commit; watchers first, because they need no Redis.
        for done in every_done:
            self._tell(done.jobs)
            self._count_events(done)
        if any(done.closed for done in every_done):
            self._look_again()
        await self._acknowledge([entry_id for entry_id, _ in entries], every_done)
        reached(Moment.AFTER_ACKNOWLEDGE)

    async def _store(self, read: Read, now: int) -> list[Ingested]:
        """All in one transaction; one event at a time where that fails for what is in it: only the bad one is lost."""
        try:
            return [await self._ingest(read, now)]
        except (Unavailable, NotSure, *AWAY):
            raise
        except Exception:
            log.exception("events that cannot be stored together are stored one by one")
        return [done for one in apart(read) for done in await self._store_alone(one, now)]

    async def _store_alone(self, one: Read, now: int) -> list[Ingested]:
        try:
            return [await self._ingest(one, now)]
        except (Unavailable, NotSure, *AWAY):
            raise
        except Exception as error:
            if not one.batches:
                log.exception("what is dead cannot be buried either")
                return []
            why = f"it cannot be stored: {error}"
        try:
            return [await self._ingest(as_gap(one, why, text_of(now)), now)]
        except (Unavailable, NotSure, *AWAY):
            raise
        except Exception:
            log.exception("an event of %s holds its own job up, and nobody else", one.batches[0].job)
            return []

    async def _ingest(self, read: Read, now: int) -> Ingested:
        backoff = self._settings.retry_backoff_seconds
        frees = isinstance(self._settings.store, RemoteStore)
        return await self._write(
            lambda conn: ingest(conn, read, now, retry_backoff_seconds=backoff, service_frees=frees)
        )

    async def _acknowledge(self, entry_ids: Sequence[bytes], every_done: Sequence[Ingested]) -> None:
        async with self._redis.pipeline(transaction=False) as pipeline:
            for done in every_done:
                for (job, attempt, source), mark in done.watermarks.items():
                    pipeline.set(keys.watermark(job, attempt, source), mark, ex=WATERMARK_SECONDS)
                for claim, reply in done.replies.items():
                    pipeline.rpush(keys.reply(claim), reply.model_dump_json())
                    pipeline.expire(keys.reply(claim), keys.REPLY_TTL_SECONDS)
            pipeline.xdel(keys.EVENTS, *entry_ids)
            await pipeline.execute()

    def _count_events(self, done: Ingested) -> None:
        counts = self.counts
        counts.events_stored += done.stored
        counts.events_duplicate += done.duplicate
        counts.events_ahead += done.ahead
        counts.events_late += done.late
        counts.events_dead += done.dead
        counts.stale_refused += done.stale
        counts.attempts_closed += done.closed
        counts.gaps_declared += done.gaps
        counts.checkpoints_refused += done.refused
        counts.retries.update(done.retries)
        counts.jobs_failed.update(done.failures)

    async def listen(self) -> None:
        """Pokes from API processes that are not this one."""
        async with self._redis.pubsub(ignore_subscribe_messages=True) as channel:
            await channel.subscribe(keys.POKE)
            while True:
                if await channel.get_message(timeout=BLOCK_SECONDS):
                    self.poked.set()

    # Tell ---------------------------------------------------------------------------------------------------------

    async def deliver(self) -> None:
        await self._courier.turn()

    # Watch --------------------------------------------------------------------------------------------------------

    async def rescue(self) -> None:
        clock, now = time.monotonic(), now_ms()
        if clock - self._rescued_at > max(self._settings.lease_seconds / 3, 5 * RESCUE_SECONDS):
            # It was us who were away: frozen, or starved. Nobody is silent because we did not listen.
            self._timers.restart_all(clock)
        self._rescued_at = clock
        if not self.redis_ok or clock - self._redis_heard_at > FRESH_SECONDS:
            return
        rescued = await self._write(lambda conn: rescue(conn, self._timers, clock, now, self._settings))
        if rescued.jobs:
            reached(Moment.AFTER_RESCUE_COMMITS)
        self.counts.attempts_lost += rescued.lost
        self.counts.retries.update(rescued.retries)
        self.counts.jobs_failed.update(rescued.failures)
        for node in rescued.nodes_lost:
            log.warning("node %s is lost: silent for %g s", node, self._settings.lease_seconds)
        if rescued.jobs or rescued.told_to_stop:
            self._tell(rescued.jobs)
            self._look_again()

    async def watch_epoch(self) -> None:
        """A Redis without our sentinel has forgotten everything: bells ring again. Journals see it by themselves."""
        try:
            is_new = await self._redis.set(keys.EPOCH, uuid7(), nx=True)
        except ResponseError:
            # It answers and takes nothing: full, or somebody's replica. Beats do not come through; nobody is silent.
            self._timers.restart_all(time.monotonic())
            raise
        if is_new:
            self._ring_everything = True
            self.poked.set()

    async def rotate(self) -> None:
        await self._upkeep.rotate()
        self.counts.checkpoints_stuck = self._upkeep.stuck

    async def prune(self) -> None:
        await self._upkeep.prune()


def _bell_key(row: BellRow) -> Hashable:
    return ("bell", row.job_id, row.attempt, row.source)


def _entries(answered: Any) -> list[tuple[bytes, dict[bytes, bytes]]]:
    """Of the one stream that was asked for, in either protocol's shape."""
    if not answered:
        return []
    if isinstance(answered, dict):
        found = next(iter(answered.values()))
        return [entry for chunk in found for entry in (chunk if isinstance(chunk, list) else [chunk])]
    return list(answered[0][1])


def _quietly(fn: Callable[[], None]) -> None:
    """For what is done only to be quicker later."""
    with suppress(Exception):
        fn()
