"""Sends what webhooks are to be told, and writes down what came of it. Control has one; SQL remembers everything.

At least once: a control that dies between the answer and its note leaves the delivery due, and the next one sends it
again under the same id. Nothing of SQL is held while something is sent.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

from footplate.contract.ids import DeliveryId
from footplate.contract.outbound import Allowed, Refused, read_url
from service.store import deliveries
from service.store.database import Write
from service.store.deliveries import Due, Tried
from service.store.times import now_ms
from service.webhooks.sending import Answer, headers, post
from service.webhooks.targets import Resolve, aim, resolved

log = logging.getLogger("footplate.webhooks")

AGAIN_SECONDS = (5, 5 * 60, 30 * 60, 2 * 3600, 5 * 3600, 10 * 3600, 14 * 3600)
"""After each failure, so that a receiver may be away for a day; then it is over."""
GIVE_UP_SECONDS = 5 * 24 * 3600
"""A webhook that has only failed for so long is disabled."""
MOST_AT_ONCE = 32
MOST_FAILING = 16
"""Of them, to webhooks that fail: each may take its ten seconds, and others want to be told at once."""
LOOK_SECONDS = 1.0
KEPT_CHARACTERS = 500
GONE = 410

Ask = Callable[[Write[Any]], Awaitable[Any]]


class Courier:
    """`read` and `write` are the database's; `clock` and `resolve` are for tests."""

    def __init__(
        self,
        read: Ask,
        write: Ask,
        allowed: Allowed,
        *,
        clock: Callable[[], int] = now_ms,
        resolve: Resolve = resolved,
    ) -> None:
        self._read, self._write, self._allowed, self._clock, self._resolve = read, write, allowed, clock, resolve
        self._under_way: dict[DeliveryId, asyncio.Task[Tried]] = {}
        """Until it is written down what came of it."""
        self.delivered = self.failed = 0
        """Tries, since the start."""

    async def turn(self) -> None:
        """Takes on what is due, waits for the first that comes back, or for a second."""
        await self.take_on()
        if self._under_way:
            await asyncio.wait(self._under_way.values(), timeout=LOOK_SECONDS, return_when=asyncio.FIRST_COMPLETED)
        else:
            await asyncio.sleep(LOOK_SECONDS)
        await self.note()

    async def take_on(self) -> None:
        await self.note()
        now, most = self._clock(), MOST_AT_ONCE + len(self._under_way)
        due: list[Due] = await self._read(lambda conn: deliveries.due(conn, now, most, MOST_FAILING))
        for one in due:
            if one.id not in self._under_way and len(self._under_way) < MOST_AT_ONCE:
                self._under_way[one.id] = asyncio.create_task(self._try(one))

    async def note(self) -> None:
        """What cannot be written down now is kept, and not sent again meanwhile."""
        came = [task.result() for task in self._under_way.values() if task.done()]
        if not came:
            return
        now = self._clock()
        failing = {tried.due.webhook_id for tried in came if not tried.is_delivered}

        def write(conn: Any) -> Any:
            deliveries.note(conn, came, now)
            return deliveries.give_up(conn, failing, now - GIVE_UP_SECONDS * 1000, now) if failing else []

        disabled = await self._write(write)
        for tried in came:
            del self._under_way[tried.due.id]
            self.delivered += tried.is_delivered
            self.failed += not tried.is_delivered
            if tried.disable is not None:
                disabled.append(tried.due.webhook_id)
        for webhook in disabled:
            log.warning("webhook %s is disabled; GET /webhooks/%s says why", webhook, webhook)

    async def stop(self) -> None:
        """What is under way is cut off, and sent again by whoever comes next."""
        tasks = list(self._under_way.values())
        self._under_way.clear()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _try(self, due: Due) -> Tried:
        try:
            answer = await self._answer(due)
        except Refused as refused:
            answer = Answer(None, error=f"not sent: the URL {refused}")
        except Exception as error:
            log.exception("delivery %s cannot be sent", due.id)
            answer = Answer(None, error=f"not sent: {error!r}")
        return self._tried(due, answer)

    async def _answer(self, due: Due) -> Answer:
        target, body, seconds = read_url(due.url), due.body.encode(), self._clock() // 1000
        address = await aim(target, self._allowed, self._resolve)
        return await post(target, address, headers(due.secrets, due.id, seconds, body), body)

    def _tried(self, due: Due, answer: Answer) -> Tried:
        status = answer.status
        is_delivered = status is not None and 200 <= status < 300
        is_gone = status == GONE
        left = () if is_delivered or is_gone else AGAIN_SECONDS[due.tries : due.tries + 1]
        return Tried(
            due,
            is_delivered,
            status,
            said(answer.body),
            None if is_delivered else answer.error or _why(status),
            again_at=self._clock() + left[0] * 1000 if left else None,
            disable="it answered 410 Gone" if is_gone else None,
        )


def _why(status: int | None) -> str:
    if status is not None and 300 <= status < 400:
        return f"it answered {status}: no redirect is followed; make a webhook with the URL that it leads to"
    return f"it answered {status}: anything but 2xx is a failure"


def said(body: bytes) -> str | None:
    """One line for people: no control characters, and not more than they want to read."""
    text = body[: 4 * KEPT_CHARACTERS].decode("utf-8", "replace")
    return "".join(one if one.isprintable() else " " for one in text)[:KEPT_CHARACTERS] or None
