"""Moves events from Redis to SQL, and acknowledges them afterwards."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from footplate.contract import keys
from footplate.contract.bucket import RemoteStore
from footplate.contract.crash_points import Moment, reached
from service.control.state import BLOCK_SECONDS, ControlState, push_reply
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
    streams: Any = await state.io.redis.xread({keys.EVENTS: "0"}, count=MAX_ENTRIES, block=BLOCK_SECONDS * 1000)
    if not streams:
        state.oldest_unread_ms = None
        return
    ((_, entries),) = streams
    now = state.io.now_ms()
    state.oldest_unread_ms = int(entries[0][0].partition(b"-")[0])
    transactions = await _store(state, read_entries([fields.get(b"batch") for _, fields in entries], text_of(now)), now)
    reached(Moment.AFTER_INGEST_COMMITS)
    has_closed = any(ingested.counts.attempts_closed for ingested in transactions)
    if has_closed:
        reached(Moment.AFTER_CLOSE_COMMITS)
    # Readers are woken before the acknowledgement, because the acknowledgement needs Redis and can fail.
    for ingested in transactions:
        state.announce(ingested.jobs)
        state.counts.add(ingested.counts)
    if has_closed:
        state.request_new_plan()
    await _acknowledge(state, [entry_id for entry_id, _ in entries], transactions)
    reached(Moment.AFTER_ACKNOWLEDGE)


async def _store(state: ControlState, entries: ParsedEntries, now: int) -> list[IngestEffects]:
    """Stores all events in one transaction.

    If this transaction fails, each event gets a transaction of its own, so that only an event with an error is lost.
    A gap with the reason is stored in place of this event.
    """
    stored = await _commit(state, entries, now)
    if isinstance(stored, IngestEffects):
        return [stored]
    log.error("events could not be stored together, and are stored one by one", exc_info=stored)
    transactions = []
    for event in one_by_one(entries):
        stored = await _commit(state, event, now)
        if isinstance(stored, Exception) and event.batches:
            stored = await _commit(state, as_gap(event, f"it cannot be stored: {stored}", text_of(now)), now)
        if isinstance(stored, IngestEffects):
            transactions.append(stored)
        elif event.batches:
            job = event.batches[0].job
            log.error("an event of job %s cannot be stored, and delays the job's later events", job, exc_info=stored)
        else:
            log.error("an event that cannot be parsed could not be stored in dead_events either", exc_info=stored)
    return transactions


async def _commit(state: ControlState, entries: ParsedEntries, now: int) -> IngestEffects | Exception:
    settings = state.settings
    backoff, frees = settings.retry_backoff_seconds, isinstance(settings.store, RemoteStore)
    return await state.try_write(
        lambda conn: operation.ingest(conn, entries, now, retry_backoff_seconds=backoff, service_frees=frees)
    )


async def _acknowledge(state: ControlState, entry_ids: Sequence[bytes], transactions: Sequence[IngestEffects]) -> None:
    """Publishes the watermarks, replies to attempts that ended, and deletes the entries from the stream."""
    async with state.io.redis.pipeline(transaction=False) as pipeline:
        for ingested in transactions:
            for (job, attempt, source), watermark in ingested.watermarks.items():
                pipeline.set(keys.watermark(job, attempt, source), watermark, ex=WATERMARK_SECONDS)
            for claim, reply in ingested.replies.items():
                push_reply(pipeline, keys.reply(claim), reply)
        pipeline.xdel(keys.EVENTS, *entry_ids)
        await pipeline.execute()
