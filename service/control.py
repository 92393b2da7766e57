"""Control: the one process that decides. Each loop is a turn, done again and again; SQL remembers everything between two turns.

decide     placement of what waits, bells of what is placed, stops of what shall stop      poked, or every poll
inbox      claims and heartbeats from workers, answered                                    as they come
ingest     events from Redis into SQL, acknowledged                                        as they come
rescue     what is silent, overdue or out of time                                          every second
epoch      whether Redis has forgotten everything, so that every bell rings again          every second
prune      what nobody will ask for again                                                  every hour
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Collection, Hashable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

from contract import keys, layout
from contract.errors import Unavailable
from contract.ids import JobId, uuid7
from contract.messages import TO_CONTROL, AttemptBeat, Claim, Message, NodeBeat
from service.events.entries import read_entries
from service.events.ingest import Ingested, ingest
from service.jobs import dispatch
from service.jobs.dispatch import Bell
from service.jobs.inbox import Heard, answer, stops
from service.jobs.placing import place_waiting
from service.jobs.prune import prune, prune_folders
from service.jobs.rescue import Timers, rescue
from service.settings import ServiceSettings
from service.store import queue
from service.store.database import Database
from service.store.queue import BellRow
from service.store.single import single
from service.store.times import now_ms, text_of

log = logging.getLogger("footplate.control")

BLOCK_SECONDS = 1
"""How long a read of Redis may block. Must stay below the socket timeout, or it never returns normally."""
FRESH_SECONDS = 1.5
"""A Redis that has not answered for this long may be frozen: nobody is called silent then."""
SOCKET_SECONDS = 5
LOCK_SECONDS = 1.0
RESCUE_SECONDS = 1.0
PRUNE_SECONDS = 3600.0
LOOK_AGAIN_SECONDS = 5.0
"""Placement looks at everything that waits at least this often, whether or not it heard of anything new."""
MAX_MESSAGES = 500
MAX_ENTRIES = 64
"""Entries of many events each in one transaction: about 10,000 events at most."""
WATERMARK_SECONDS = 24 * 3600
LONGEST_BACKOFF = 5.0
AWAY = (RedisError, OSError, asyncio.TimeoutError)


@dataclass(slots=True)
class Counts:
    """What Prometheus is told."""

    attempts_placed: int = 0
    bells_rung: int = 0
    claims_granted: int = 0
    claims_denied: int = 0
    attempts_lost: int = 0
    attempts_closed: int = 0
    beats: int = 0
    events_stored: int = 0
    events_duplicate: int = 0
    events_ahead: int = 0
    """Jumped ahead of the watermark; their journal sends them again."""
    events_dead: int = 0
    events_late: int = 0
    stale_refused: int = 0
    ingest_lag_ms: int = 0
    """Between the entry's arrival in Redis and its commit, for the last transaction."""
    redis_outages: int = 0
    database_outages: int = 0


class Control:
    """`on_events` hears which jobs have new events, after the commit, on the loop that `run` runs on."""

    def __init__(
        self,
        db: Database,
        settings: ServiceSettings,
        on_events: Callable[[Collection[JobId]], None] = lambda _: None,
    ) -> None:
        self.counts = Counts()
        self.is_active = False
        """Holds the lock and works."""
        self.redis_ok = False
        self._db, self._settings, self._on_events = db, settings, on_events
        self._redis: Redis = Redis.from_url(
            settings.redis,
            socket_timeout=SOCKET_SECONDS,
            socket_connect_timeout=2,
            # Ours is the only retry: redis-py's own would send everything several times into a Redis that stalls.
            retry=Retry(NoBackoff(), 0),
        )
        self._lock = single(settings.database_url)
        self._bell = Bell(settings.redis)
        self._bell_thread = ThreadPoolExecutor(1, thread_name_prefix="bell")
        self._timers = Timers()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._poked = asyncio.Event()
        self._closing = asyncio.Event()
        self._room_changed = True
        self._placed_at = self._rescued_at = self._redis_heard_at = 0.0
        self._ring_everything = False
        self._told: set[tuple[str, int | None]] = set()

    # Life ---------------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Until closed: waits for the lock, works while it holds it."""
        self._loop = asyncio.get_running_loop()
        try:
            while not self._closing.is_set():
                if await asyncio.to_thread(self._lock.try_take):
                    await self._work()
                else:
                    await self._sleep(LOCK_SECONDS)
        finally:
            self._lock.release()
            self._bell_thread.shutdown()
            self._bell.close()
            with suppress(*AWAY):
                await self._redis.aclose()

    def poke(self) -> None:
        """Something waits, or shall stop. From any thread."""
        if self._loop is not None:
            with suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._poked.set)

    async def close(self) -> None:
        """`run` ends after the turns that are under way."""
        self._closing.set()
        self._poked.set()

    async def _work(self) -> None:
        log.info("control works: %s", self._settings.database_url.partition("://")[0])
        self._timers = Timers()
        self._room_changed = self._ring_everything = True
        self.is_active = True
        turns: list[tuple[Callable[[], Awaitable[None]], float]] = [
            (self.decide, 0.0),
            (self.read_inbox, 0.0),
            (self.ingest, 0.0),
            (self.rescue, RESCUE_SECONDS),
            (self.listen, RESCUE_SECONDS),
            (self.watch_epoch, RESCUE_SECONDS),
            (self.prune, PRUNE_SECONDS),
        ]
        tasks = [asyncio.create_task(self._again_and_again(turn, pause)) for turn, pause in turns]
        try:
            while not self._closing.is_set() and await asyncio.to_thread(self._lock.is_held):
                await self._sleep(LOCK_SECONDS)
        finally:
            self.is_active = False
            await self._end(tasks)
            self._lock.release()

    async def _end(self, tasks: Sequence[asyncio.Task[None]]) -> None:
        """A turn that writes is let to finish; one that waits for Redis is not waited for."""
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _again_and_again(self, turn: Callable[[], Awaitable[None]], pause: float) -> None:
        """The only retry there is. What a turn could not do now, the next one will."""
        backoff = 0.1
        while not self._closing.is_set():
            try:
                await turn()
                backoff = 0.1
                if pause:
                    await self._sleep(pause)
                continue
            except Unavailable as error:
                self.counts.database_outages += 1
                # Beats wait unread while SQL is away: that is not their senders' silence.
                self._timers.restart_all(time.monotonic())
                log.warning("%s waits for the database: %s", turn.__name__, error)
            except AWAY as error:
                self._redis_is_away(turn.__name__, error)
            except Exception:
                log.exception("%s failed, and is tried again", turn.__name__)
            await self._sleep(backoff)
            backoff = min(backoff * 2, LONGEST_BACKOFF)

    def _redis_is_away(self, who: str, error: BaseException) -> None:
        if self.redis_ok:
            self.counts.redis_outages += 1
            log.warning("%s waits for Redis: %s", who, error)
        self.redis_ok = False

    def _redis_answered(self, after: float) -> None:
        self._redis_heard_at = time.monotonic()
        if not self.redis_ok or after > FRESH_SECONDS:
            # Nobody could be heard: everyone gets a full lease.
            self._timers.restart_all(self._redis_heard_at)
        self.redis_ok = True

    async def _sleep(self, seconds: float) -> None:
        with suppress(asyncio.TimeoutError):
            async with asyncio.timeout(seconds):
                await self._closing.wait()

    def _tell(self, job_ids: Iterable[JobId]) -> None:
        if changed := set(job_ids):
            self._on_events(changed)

    # Decide -------------------------------------------------------------------------------------------------------

    async def decide(self) -> None:
        """Waits for a poke or the poll, then places, rings and stops."""
        with suppress(asyncio.TimeoutError):
            async with asyncio.timeout(self._settings.poll_seconds):
                await self._poked.wait()
        was_poked = self._poked.is_set()
        self._poked.clear()
        await self.place(look_at_everything=was_poked)
        await self.ring()
        await self.push_stops()

    async def place(self, *, look_at_everything: bool = True) -> None:
        now, clock = now_ms(), time.monotonic()
        due = look_at_everything or self._room_changed or clock - self._placed_at > LOOK_AGAIN_SECONDS
        if not due and not await self._db.read(lambda conn: queue.has_fresh(conn, now)):
            return
        self._room_changed, self._placed_at = False, clock
        if not await self._db.read(lambda conn: queue.waiting(conn, now, most=1)):
            return
        placed = await self._db.write(lambda conn: place_waiting(conn, now))
        self.counts.attempts_placed += len(placed.jobs)
        self._tell(placed.jobs)

    async def ring(self) -> None:
        """Publishes from a thread of its own, then marks: a bell may ring twice, never not at all."""
        rows = await self._db.read(dispatch.unclaimed)
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
            self.counts.bells_rung += len(rung)
            for row in rung:
                self._timers.restart(_bell_key(row), clock)
            await self._db.write(lambda conn: dispatch.mark_rung(conn, rung, now_ms()))
        if error is not None:
            self._ring_everything = True
            raise ConnectionError(f"the bell of {due[len(rung)].node} cannot be rung: {error}") from error

    async def push_stops(self) -> None:
        """Tells whoever runs a stopping job, without waiting for its next beat. Once for each decision."""
        now = now_ms()
        told = await self._db.read(lambda conn: stops(conn, now))
        fresh = [reply for key, reply in told.items() if key not in self._told]
        await self._send([(keys.reply(reply.claim), reply) for reply in fresh])
        self._told = set(told)

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
        heard = await self._db.write(lambda conn: answer(conn, messages, now, self._settings))
        for key, number in heard.alive:
            self._timers.heard(key, number, clock)
        self._count(heard)
        await self._send(heard.replies)
        self._tell(heard.jobs)
        if heard.has_new_room or heard.lost or heard.told_to_stop:
            self._look_again()

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
        self._poked.set()

    async def ingest(self) -> None:
        """Reads from the beginning, always: what was committed has been deleted."""
        answered = await self._redis.xread({keys.EVENTS: "0"}, count=MAX_ENTRIES, block=BLOCK_SECONDS * 1000)
        entries = _entries(answered)
        if not entries:
            return
        now = now_ms()
        read = read_entries([fields.get(b"batch") for _, fields in entries], text_of(now))
        backoff = self._settings.retry_backoff_seconds
        done = await self._db.write(lambda conn: ingest(conn, read, now, retry_backoff_seconds=backoff))
        # Watchers and the acknowledgement are both after the commit; watchers first, because they need no Redis.
        self._tell(done.jobs)
        self._count_events(done, now - int(entries[0][0].partition(b"-")[0]))
        if done.closed:
            self._look_again()
        await self._acknowledge([entry_id for entry_id, _ in entries], done)

    async def _acknowledge(self, entry_ids: Sequence[bytes], done: Ingested) -> None:
        async with self._redis.pipeline(transaction=False) as pipeline:
            for (job, attempt, source), mark in done.watermarks.items():
                pipeline.set(keys.watermark(job, attempt, source), mark, ex=WATERMARK_SECONDS)
            for claim, reply in done.replies.items():
                pipeline.rpush(keys.reply(claim), reply.model_dump_json())
                pipeline.expire(keys.reply(claim), keys.REPLY_TTL_SECONDS)
            pipeline.xdel(keys.EVENTS, *entry_ids)
            await pipeline.execute()

    def _count_events(self, done: Ingested, lag_ms: int) -> None:
        counts = self.counts
        counts.events_stored += done.stored
        counts.events_duplicate += done.duplicate
        counts.events_ahead += done.ahead
        counts.events_late += done.late
        counts.events_dead += done.dead
        counts.stale_refused += done.stale
        counts.attempts_closed += done.closed
        counts.ingest_lag_ms = max(0, lag_ms)

    async def listen(self) -> None:
        """Pokes from API processes that are not this one."""
        async with self._redis.pubsub(ignore_subscribe_messages=True) as channel:
            await channel.subscribe(keys.POKE)
            while not self._closing.is_set():
                if await channel.get_message(timeout=BLOCK_SECONDS):
                    self._poked.set()

    # Watch --------------------------------------------------------------------------------------------------------

    async def rescue(self) -> None:
        clock, now = time.monotonic(), now_ms()
        if clock - self._rescued_at > max(self._settings.lease_seconds / 3, 5 * RESCUE_SECONDS):
            # It was us who were away: frozen, or starved. Nobody is silent because we did not listen.
            self._timers.restart_all(clock)
        self._rescued_at = clock
        if not self.redis_ok or clock - self._redis_heard_at > FRESH_SECONDS:
            return
        rescued = await self._db.write(lambda conn: rescue(conn, self._timers, clock, now, self._settings))
        self.counts.attempts_lost += rescued.lost
        for node in rescued.nodes_lost:
            log.warning("node %s is lost: silent for %g s", node, self._settings.lease_seconds)
        if rescued.jobs or rescued.told_to_stop:
            self._tell(rescued.jobs)
            self._look_again()

    async def watch_epoch(self) -> None:
        """A Redis without our sentinel has forgotten everything: bells ring again, journals send again by themselves."""
        if await self._redis.set(keys.EPOCH, uuid7(), nx=True):
            self._ring_everything = True
            self._poked.set()

    async def prune(self) -> None:
        artifacts = self._settings.artifacts_path
        now = now_ms()
        await asyncio.to_thread(_write_probe, artifacts)
        await self._db.write(lambda conn: prune(conn, now))
        await asyncio.to_thread(prune_folders, artifacts)


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


def _write_probe(artifacts: Path) -> None:
    """What a node must be able to read, to know that it sees the same files."""
    artifacts.mkdir(parents=True, exist_ok=True)
    probe = artifacts / layout.PROBE
    if not probe.exists():
        probe.write_text(f"footplate {uuid7()}\n")
