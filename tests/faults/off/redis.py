"""Switches of the protections around a Redis that forgets, dies, freezes or is full."""

from __future__ import annotations

import math
from types import ModuleType
from typing import Any

from tests.faults.off import switch


@switch("a lost bell rings again", module="service.control.turns")
def ring_once(turns: ModuleType) -> None:
    """Rings a bell once, also after a new epoch, and for attempts that nobody claims."""

    async def look_away(self: Any) -> None: ...

    turns.Turns.watch_epoch = look_away
    turns.dispatch.due = lambda rows, *_: [row for row in rows if row.rung_at is None]


@switch("what is not acknowledged is sent again", module="worker.attempt.control_link")
def send_once(control: ModuleType) -> None:
    control.Sender.rewind = lambda self: None


@switch("what jumps ahead is left to its journal", module="service.events.ingest")
def store_whatever_comes(ingest: ModuleType) -> None:
    contiguous = ingest._Ledger.take

    def eager(self: Any, batch: Any, part: Any, done: Any) -> None:
        for event in batch.events:
            contiguous(self, ingest.replace(batch, events=[]), part, done)
            page = self.pages[part.attempt, part.source]
            page.watermark = max(page.watermark, event.seq - 1)
            contiguous(self, ingest.replace(batch, events=[event]), part, done)

    from dataclasses import replace

    ingest.replace = replace
    ingest._Ledger.take = eager


@switch("nobody is silent while Redis carries nothing", module="service.control.turns")
def blame_the_workers(turns: ModuleType) -> None:
    """Leases run on, whatever Redis does."""

    def always_fine(self: Any, **_: Any) -> None:
        self.redis_ok, self._redis_heard_at = True, math.inf

    turns.Turns._redis_answered = always_fine
    turns.Turns.redis_is_away = lambda self: None
    turns.ResponseError = ZeroDivisionError


@switch("a stop is told until it is heard", module="service.control.turns")
def tell_a_stop_once(turns: ModuleType) -> None:
    """Pushed when it is decided, whether or not there is a Redis, and in no answer to a beat."""
    from service.jobs import inbox

    answered, ring = inbox.attempt_beat, turns.Turns.ring

    async def push_and_ring(self: Any) -> None:
        words = await self._db.read(lambda conn: turns.words(conn, self._stop_left()))
        fresh, self._told = [words[key] for key in words.keys() - self._told], set(words)
        with turns.suppress(*turns.AWAY):
            await self._send([(turns.keys.reply(reply.claim), reply) for reply in fresh])
        await ring(self)

    turns.Turns.ring = push_and_ring
    inbox.attempt_beat = lambda *asked: answered(*asked).model_copy(update={"stop": None})
