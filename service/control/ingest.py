"""Moves events from Redis to SQL, and acknowledges them afterwards."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from footplate.contract import redis_keys
from footplate.contract.bucket import RemoteStore
from footplate.contract.crash_points import Moment, reached
from service.control.control_state import BLOCK_SECONDS, ControlState, push_reply
from service.events import ingest as operation
from service.events.changes import IngestEffects
from service.events.entries import ParsedEntries, as_gap, one_by_one, read_entries
from service.store.times import text_of

log = logging.getLogger("footplate.control")

MAX_ENTRIES = 64
"""The most stream entries that one transaction stores. Each entry holds many events."""
WATERMARK_SECONDS = 24 * 3600


async def ingest(state: ControlState) -> None:
    """Moves the oldest entries of the Redis stream to SQL, and then acknowledges and deletes these entries.

    Every run reads from the beginning of the stream, because stored entries are deleted from the stream.
    """
    streams: Any = await state.io.redis.xread({redis_keys.EVENTS: "0"}, count=MAX_ENTRIES, block=BLOCK_SECONDS * 1000)
    if not streams:
        state.oldest_unread_ms = None
        return
    ((_, entries),) = streams
    now = state.io.now_ms()
    state.oldest_unread_ms = int(entries[0][0].partition(b"-")[0])
    transactions = await _store(state, read_entries([fields.get(b"batch") for _, fields in entries], text_of(now)), now)
    reached(Moment.AFTER_INGEST_COMMITS)
    has_closed = any(effects.counts.attempts_closed for effects in transactions)
    if has_closed:
        reached(Moment.AFTER_CLOSE_COMMITS)
    # Readers are woken before the acknowledgement, because the acknowledgement needs Redis and can fail.
    for effects in transactions:
        state.announce(effects.jobs)
        state.counts.add(effects.counts)
    if has_closed:
        state.request_new_plan()
    await _acknowledge(state, [entry_id for entry_id, _ in entries], transactions)
    reached(Moment.AFTER_ACKNOWLEDGE)


async def _store(state: ControlState, entries: ParsedEntries, now: int) -> list[IngestEffects]:
    """Stores all events in one transaction.

    If this transaction fails, each event gets a transaction of its own, so that only an event with an error is lost.
    A gap with the reason is stored in place of this event.
    """
    result = await _commit(state, entries, now)
    if isinstance(result, IngestEffects):
        return [result]
    log.error("events could not be stored together, and are stored one by one", exc_info=result)
    transactions = []
    for event in one_by_one(entries):
        result = await _commit(state, event, now)
        if isinstance(result, Exception) and event.batches:
            result = await _commit(state, as_gap(event, f"it cannot be stored: {result}", text_of(now)), now)
        if isinstance(result, IngestEffects):
            transactions.append(result)
        elif event.batches:
            job = event.batches[0].job
            log.error("an event of job %s cannot be stored, and delays the job's later events", job, exc_info=result)
        else:
            log.error("an event that cannot be parsed could not be stored in dead_events either", exc_info=result)
    return transactions


async def _commit(state: ControlState, entries: ParsedEntries, now: int) -> IngestEffects | Exception:
    backoff, frees = state.settings.retry_backoff_seconds, isinstance(state.settings.store, RemoteStore)
    return await state.try_write(operation.ingest, entries, now, retry_backoff_seconds=backoff, service_frees=frees)


async def _acknowledge(state: ControlState, entry_ids: Sequence[bytes], transactions: Sequence[IngestEffects]) -> None:
    """Publishes the watermarks, replies to attempts that ended, and deletes the entries from the stream."""
    async with state.io.redis.pipeline(transaction=False) as pipeline:
        for effects in transactions:
            for (job, attempt, source), watermark in effects.watermarks.items():
                pipeline.set(redis_keys.watermark(job, attempt, source), watermark, ex=WATERMARK_SECONDS)
            for claim, reply in effects.replies.items():
                push_reply(pipeline, redis_keys.reply(claim), reply)
        pipeline.xdel(redis_keys.EVENTS, *entry_ids)
        await pipeline.execute()
