"""Statements that find the deliveries of webhooks that must be sent now, and that store the results.

An unreachable receiver has a bounded cost. Due deliveries are found by reading a few rows of an index for each webhook,
however many deliveries wait. A failing webhook is tried once in a while, one delivery at a time, and is finally
disabled.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, ScalarSelect, bindparam, delete, func, or_, select, update

from footplate.contract.ids import DeliveryId, WebhookId
from service.store.mapping import columns_of
from service.store.row_types import DeliveryRow
from service.store.tables import IS_PENDING, deliveries, webhooks
from service.store.times import text_of
from service.store.webhooks import DELIVERED, FAILED, IS_ON, PENDING, disable

AT_ONCE = 4
"""The most deliveries of one webhook at the same time. A failing webhook has one."""
REST_SECONDS = 5
"""The pause between two tries of a failing webhook."""
MOST_WAITING = 10_000
"""The number of waiting deliveries at which a failing webhook is disabled."""
_ROW = columns_of(deliveries, DeliveryRow)


@dataclass(frozen=True, slots=True)
class DueDelivery:
    """A delivery that is due, and where to send it."""

    id: DeliveryId
    webhook_id: WebhookId
    body: str
    tries: int
    url: str
    secrets: tuple[str, ...]
    """The secrets to sign with. For a while after a change there are two."""


@dataclass(frozen=True, slots=True)
class DeliveryResult:
    """The result of one try of a delivery."""

    due: DueDelivery
    is_delivered: bool
    http_status: int | None
    answer: str | None
    error: str | None
    again_at: int | None
    """The time of the next try. None: there is no further try."""
    disable: str | None
    """The reason for which the webhook must be disabled. None: it stays enabled."""


def _nth(place: int) -> ScalarSelect[DeliveryId]:
    """Returns a subquery for the due delivery of a webhook that has `place` due deliveries before it."""
    return (
        select(deliveries.c.id)
        .where(deliveries.c.webhook_id == webhooks.c.id, IS_PENDING, deliveries.c.due_at <= bindparam("now"))
        .order_by(deliveries.c.due_at, deliveries.c.id)
        .limit(1)
        .offset(place)
        .correlate(webhooks)
        .scalar_subquery()
    )


_IS_READY = or_(webhooks.c.rests_until.is_(None), webhooks.c.rests_until <= bindparam("now"))
_FIRST = select(webhooks.c.failing_since, webhooks.c.rests_until, *map(_nth, range(AT_ONCE))).where(
    IS_ON, _IS_READY, _nth(0).is_not(None)
)
_TO_SEND = select(
    deliveries.c.id, deliveries.c.webhook_id, deliveries.c.body, deliveries.c.tries,
    webhooks.c.url, webhooks.c.secret, webhooks.c.old_secret, webhooks.c.old_until,
).select_from(deliveries.join(webhooks, webhooks.c.id == deliveries.c.webhook_id))  # fmt: skip


def due(conn: Connection, now: int, most: int, most_failing: int) -> list[DueDelivery]:
    """Returns at most `most` due deliveries, including those that are being sent.

    Webhooks that work come first, with up to AT_ONCE deliveries each. Failing webhooks follow with one delivery each,
    in the order in which their pauses ended.
    """
    healthy_first, failing = [], []
    for failing_since, rests_until, *first_ids in conn.execute(_FIRST, {"now": now}):
        if failing_since is None:
            healthy_first += [(place, delivery) for place, delivery in enumerate(first_ids) if delivery is not None]
        else:
            failing.append((rests_until or 0, first_ids[0]))
    ids = [delivery for _, delivery in sorted(healthy_first) + sorted(failing)[:most_failing]][:most]
    rows = {row.id: row for row in conn.execute(_TO_SEND.where(deliveries.c.id.in_(ids)))} if ids else {}
    return [
        DueDelivery(row.id, row.webhook_id, row.body, row.tries, row.url, secrets_at(row, now))
        for row in map(rows.__getitem__, ids)
    ]


def secrets_at(row: Any, now: int) -> tuple[str, ...]:
    """Returns the secrets of a webhook that sign a delivery at this time. The row has the webhook's columns."""
    is_changing = row.old_until is not None and row.old_until > now
    return (row.secret, row.old_secret) if is_changing else (row.secret,)


def store_results(conn: Connection, results: Sequence[DeliveryResult], now: int) -> None:
    """Stores the result of each try.

    A result is ignored if another result of the same try was stored meanwhile, or if the webhook was deleted.
    """
    for result in results:
        status = DELIVERED if result.is_delivered else PENDING if result.again_at is not None else FAILED
        delivery = result.due
        update_result = conn.execute(
            update(deliveries)
            .where(deliveries.c.id == delivery.id, deliveries.c.tries == delivery.tries, IS_PENDING)
            .values(
                status=status, tries=delivery.tries + 1, due_at=result.again_at, tried_at=now,
                http_status=result.http_status, answer=result.answer, error=result.error,
            )
        )  # fmt: skip
        if not update_result.rowcount:
            continue
        failing_since = None if result.is_delivered else func.coalesce(webhooks.c.failing_since, now)
        rests_until = None if result.is_delivered else now + REST_SECONDS * 1000
        conn.execute(
            update(webhooks)
            .where(webhooks.c.id == delivery.webhook_id)
            .values(failing_since=failing_since, rests_until=rests_until)
        )
        if result.disable is not None:
            disable(conn, delivery.webhook_id, result.disable, now)


def give_up(conn: Connection, failing: Collection[WebhookId], since: int, now: int) -> list[WebhookId]:
    """Disables the webhooks of `failing` without a success since `since`, or with too many waiting deliveries."""
    candidates = select(webhooks.c.id, webhooks.c.failing_since).where(
        webhooks.c.id.in_(failing), webhooks.c.failing_since.is_not(None), IS_ON
    )
    disabled_ids = []
    for webhook, failing_since in conn.execute(candidates).all():
        why = f"every delivery since {text_of(failing_since)} has failed"
        if failing_since > since:
            query = select(deliveries.c.due_at).where(deliveries.c.webhook_id == webhook, IS_PENDING)
            if conn.execute(query.order_by(deliveries.c.due_at).limit(1).offset(MOST_WAITING)).first() is None:
                continue
            why += f", and more than {MOST_WAITING:,} deliveries waited"
        disable(conn, webhook, why, now)
        disabled_ids.append(webhook)
    return disabled_ids


def log(conn: Connection, webhook: WebhookId, limit: int, before: DeliveryId | None = None) -> list[DeliveryRow]:
    """Returns a webhook's deliveries, newest first.

    `before` is the last delivery of the previous page.
    """
    query = select(*_ROW).where(deliveries.c.webhook_id == webhook)
    if before is not None:
        query = query.where(deliveries.c.id < before)
    return [DeliveryRow(*row) for row in conn.execute(query.order_by(deliveries.c.id.desc()).limit(limit))]


def prune(conn: Connection, before: int) -> None:
    """Deletes deliveries that were created before a time, in milliseconds. Their ids begin with that time."""
    conn.execute(delete(deliveries).where(deliveries.c.id < f"msg_{before:012x}"))
