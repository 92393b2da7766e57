"""Sends the deliveries of webhooks and stores their results. Only control does so, and all state is in SQL.

A delivery is sent at least once. If control dies after the answer and before the result is stored, the next control
sends the delivery again with the same id. No transaction is open while a delivery is sent.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from footplate.contract.ids import DeliveryId
from footplate.contract.outbound import Allowed, Refused, read_url
from service.end_tasks import end_tasks
from service.store import deliveries
from service.store.deliveries import DeliveryResult, DueDelivery
from service.store.times import now_ms
from service.webhooks.sending import Answer, Resolve, aim, headers, post, resolved

log = logging.getLogger("footplate.webhooks")

RETRY_DELAYS_SECONDS = (5, 5 * 60, 30 * 60, 2 * 3600, 5 * 3600, 10 * 3600, 14 * 3600)
"""The waits after each failure. A receiver may be down for a day. After the last try, the delivery has failed."""
GIVE_UP_SECONDS = 5 * 24 * 3600
"""The time without a successful delivery after which a webhook is disabled."""
MOST_AT_ONCE = 32
MOST_FAILING = 16
"""The most concurrent deliveries to webhooks that fail, because each may take ten seconds and delay the others."""
LOOK_SECONDS = 1.0
KEPT_CHARACTERS = 500
GONE = 410

Ask = Callable[..., Awaitable[Any]]


class WebhookSender:
    """Sends the deliveries that are due. `read` and `write` are those of a `Database`."""

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
        self._under_way: dict[DeliveryId, asyncio.Task[DeliveryResult]] = {}
        """The deliveries that are being sent, or whose result is not stored yet."""
        self.delivered = self.failed = 0
        """The number of tries since the start, by result."""

    async def run_once(self) -> None:
        """Starts to send the deliveries that are due, waits up to a second for a first result, and stores results."""
        await self.start_due()
        if self._under_way:
            await asyncio.wait(self._under_way.values(), timeout=LOOK_SECONDS, return_when=asyncio.FIRST_COMPLETED)
        else:
            await asyncio.sleep(LOOK_SECONDS)
        await self.store_results()

    async def start_due(self) -> None:
        """Starts a task for each delivery that is due and not being sent, up to MOST_AT_ONCE tasks."""
        await self.store_results()
        now, most = self._clock(), MOST_AT_ONCE + len(self._under_way)
        due: list[DueDelivery] = await self._read(deliveries.due, now, most, MOST_FAILING)
        for delivery in due:
            if delivery.id not in self._under_way and len(self._under_way) < MOST_AT_ONCE:
                self._under_way[delivery.id] = asyncio.create_task(self._try(delivery))

    async def store_results(self) -> None:
        """Stores the results. A result that cannot be stored is kept, and its delivery is not sent again meanwhile."""
        results = [task.result() for task in self._under_way.values() if task.done()]
        if not results:
            return
        now = self._clock()
        failing = {result.due.webhook_id for result in results if not result.is_delivered}

        def write(conn: Any) -> Any:
            deliveries.store_results(conn, results, now)
            return deliveries.give_up(conn, failing, now - GIVE_UP_SECONDS * 1000, now) if failing else []

        disabled_ids = await self._write(write)
        for result in results:
            del self._under_way[result.due.id]
            self.delivered += result.is_delivered
            self.failed += not result.is_delivered
            if result.disable is not None:
                disabled_ids.append(result.due.webhook_id)
        for webhook in disabled_ids:
            log.warning("webhook %s is disabled: GET /webhooks/%s shows the reason", webhook, webhook)

    async def stop(self) -> None:
        """Cancels the deliveries that are being sent. The next control sends them again."""
        tasks = list(self._under_way.values())
        self._under_way.clear()
        await end_tasks(*tasks)

    async def _try(self, due: DueDelivery) -> DeliveryResult:
        seconds, body = self._clock() // 1000, due.body.encode()
        try:
            answer = await send(due.url, due.secrets, due.id, seconds, body, self._allowed, self._resolve)
        except Exception as error:
            log.exception("delivery %s cannot be sent", due.id)
            answer = Answer(None, error=f"not sent: {error!r}")
        status = answer.status
        is_delivered = status is not None and 200 <= status < 300
        is_gone = status == GONE
        next_delays = () if is_delivered or is_gone else RETRY_DELAYS_SECONDS[due.tries : due.tries + 1]
        return DeliveryResult(
            due,
            is_delivered,
            status,
            one_line(answer.body),
            None if is_delivered else answer.error or _why(status),
            again_at=self._clock() + next_delays[0] * 1000 if next_delays else None,
            disable="the receiver answered 410 Gone" if is_gone else None,
        )


async def send(
    url: str, secrets: Sequence[str], id: DeliveryId, seconds: int, body: bytes, allowed: Allowed,
    resolve: Resolve = resolved,
) -> Answer:  # fmt: skip
    """Sends one delivery, signed with the secrets, and returns the answer. `seconds` is the time of this try."""
    target = read_url(url)
    try:
        address = await aim(target, allowed, resolve)
    except Refused as refusal:
        return Answer(None, error=f"not sent: the URL {refusal}")
    return await post(target, address, headers(secrets, id, seconds, body), body)


def _why(status: int | None) -> str:
    if status is not None and 300 <= status < 400:
        return f"the receiver answered {status}. Redirects are not followed: make a webhook with the target's URL"
    return f"the receiver answered {status}, and only 2xx is a success"


def one_line(body: bytes) -> str | None:
    """Returns the start of an answer as one line without control characters, or None if the answer is empty."""
    text = body[: 4 * KEPT_CHARACTERS].decode("utf-8", "replace")
    return "".join(char if char.isprintable() else " " for char in text)[:KEPT_CHARACTERS] or None
