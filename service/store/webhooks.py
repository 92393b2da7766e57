"""Statements about webhooks and what they are told.

A delivery is written in the transaction that moves the job, so there is one for each move, and none of a move that was
rolled back. Control sends it after the commit, and writes down what came of it.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Row, bindparam, delete, func, insert, select, update

from contract.errors import NotFound
from contract.ids import DeliveryId, JobId, WebhookId, new_delivery_id
from contract.lifecycle import JobState, Reason
from service.store.mapping import columns_of, values_of
from service.store.rows import DeliveryRow, WebhookRow
from service.store.tables import IS_PENDING, deliveries, jobs, webhooks
from service.store.times import text_of

PENDING, DELIVERED, FAILED = "pending", "delivered", "failed"
PING = "ping"
AT_ONCE = 4
"""What one webhook may have under way at the same time."""
_COLUMNS = columns_of(webhooks, WebhookRow)
_DELIVERY = columns_of(deliveries, DeliveryRow)
_IS_ON = webhooks.c.disabled_at.is_(None)
_OF_PROJECT = select(*_COLUMNS).where(webhooks.c.project == bindparam("project")).order_by(webhooks.c.id)
_LISTENING = _OF_PROJECT.where(_IS_ON)
_HEARD = select(webhooks.c.project).where(_IS_ON).distinct()
SOMEBODY_LISTENS = (
    select(webhooks.c.id).where(webhooks.c.project == jobs.c.project, _IS_ON).correlate(jobs).exists().label("is_heard")
)
"""Of a row of `jobs`: whether its project has a webhook. Part of the statement that moves it, and no statement more."""


@dataclass(frozen=True, slots=True)
class Moved:
    """What a webhook is told of a job: where it is now, and how to find it. Nothing of its spec."""

    job: JobId
    project: str
    name: str | None
    tags: str
    """JSON list."""
    state: JobState
    reason: Reason
    message: str | None
    attempt: int
    no: int


@dataclass(frozen=True, slots=True)
class Due:
    """One that is to be sent now, and where to."""

    id: DeliveryId
    webhook_id: WebhookId
    body: str
    tries: int
    url: str
    secret: str


@dataclass(frozen=True, slots=True)
class Tried:
    """What came of a try."""

    due: Due
    is_delivered: bool
    http_status: int | None
    answer: str | None
    error: str | None
    again_at: int | None
    """When it is tried again. None: it is over."""
    disable: str | None
    """Why its webhook is told no more."""


def insert_webhook(conn: Connection, row: WebhookRow, most: int) -> bool:
    """False: its project has as many as one may have."""
    if conn.execute(select(func.count()).where(webhooks.c.project == row.project)).scalar_one() >= most:
        return False
    conn.execute(insert(webhooks), values_of(row))
    return True


def of_project(conn: Connection, project: str) -> list[WebhookRow]:
    return [WebhookRow(*row) for row in conn.execute(_OF_PROJECT, {"project": project})]


def get(conn: Connection, project: str, webhook: WebhookId) -> WebhookRow:
    """Raises NotFound; another project's webhook is not there either."""
    found = select(*_COLUMNS).where(webhooks.c.project == project, webhooks.c.id == webhook)
    row = conn.execute(found).one_or_none()
    if row is None:
        raise NotFound(f"there is no webhook {webhook!r} here", hint="GET /webhooks lists them")
    return WebhookRow(*row)


def heard(conn: Connection) -> frozenset[str]:
    """The projects that have a webhook to tell."""
    return frozenset(conn.execute(_HEARD).scalars())


def delete_webhook(conn: Connection, project: str, webhook: WebhookId) -> WebhookRow:
    """And all that it was told. Raises NotFound."""
    row = get(conn, project, webhook)
    conn.execute(delete(deliveries).where(deliveries.c.webhook_id == webhook))
    conn.execute(delete(webhooks).where(webhooks.c.id == webhook))
    return row


def enable(conn: Connection, project: str, webhook: WebhookId) -> WebhookRow:
    """It is told of what happens from now on. Raises NotFound."""
    get(conn, project, webhook)
    conn.execute(
        update(webhooks).where(webhooks.c.id == webhook).values(disabled_at=None, disabled_why=None, failing_since=None)
    )
    return get(conn, project, webhook)


def disable(conn: Connection, project: str, webhook: WebhookId, why: str, now: int) -> WebhookRow:
    """Raises NotFound."""
    get(conn, project, webhook)
    _disable(conn, webhook, why, now)
    return get(conn, project, webhook)


def _disable(conn: Connection, webhook: WebhookId, why: str, now: int) -> None:
    """What waits is not sent: a receiver that comes back after weeks must not hear that a job started just now."""
    conn.execute(update(webhooks).where(webhooks.c.id == webhook, _IS_ON).values(disabled_at=now, disabled_why=why))
    conn.execute(
        update(deliveries)
        .where(deliveries.c.webhook_id == webhook, IS_PENDING)
        .values(status=FAILED, due_at=None, error="the webhook was disabled before this was delivered")
    )


def announce(conn: Connection, moved: Moved, now: int) -> None:
    """A delivery to each webhook of its project that wants to hear of this."""
    listening = [WebhookRow(*row) for row in conn.execute(_LISTENING, {"project": moved.project})]
    wanting = [one for one in listening if _wants(one, moved)]
    if wanting:
        kind = f"job.{moved.state.value}"
        body = _body(kind, _data(moved), now)
        conn.execute(insert(deliveries), [values_of(_new(one.id, kind, moved.job, body, now)) for one in wanting])


def ping(conn: Connection, webhook: WebhookRow, now: int) -> DeliveryRow:
    """One that says nothing but that it arrives."""
    body = _body(PING, {"webhook": webhook.id, "project": webhook.project}, now)
    row = _new(webhook.id, PING, None, body, now)
    conn.execute(insert(deliveries), values_of(row))
    return row


def _wants(webhook: WebhookRow, moved: Moved) -> bool:
    if webhook.states is not None and moved.state.value not in json.loads(webhook.states):
        return False
    return webhook.tags is None or not set(json.loads(webhook.tags)).isdisjoint(json.loads(moved.tags))


def _data(moved: Moved) -> dict[str, Any]:
    return {
        "job": moved.job,
        "project": moved.project,
        "name": moved.name,
        "tags": json.loads(moved.tags),
        "state": moved.state.value,
        "reason": moved.reason.value,
        "message": moved.message,
        "attempt": moved.attempt,
        "no": moved.no,
    }


def _body(kind: str, data: dict[str, Any], now: int) -> str:
    return json.dumps({"type": kind, "timestamp": text_of(now), "data": data}, separators=(",", ":"))


def _new(webhook: WebhookId, kind: str, job: JobId | None, body: str, now: int) -> DeliveryRow:
    return DeliveryRow(
        new_delivery_id(), webhook, kind, job, body, now, PENDING, 0, due_at=now, tried_at=None, http_status=None,
        answer=None, error=None,
    )  # fmt: skip


def due(conn: Connection, now: int, most: int) -> list[Due]:
    """What is to be sent, those under way among it; a few of each webhook, and first of those that do not fail."""
    place = func.row_number().over(
        partition_by=deliveries.c.webhook_id, order_by=(deliveries.c.due_at, deliveries.c.id)
    )
    waiting = (
        select(
            deliveries.c.id, deliveries.c.webhook_id, deliveries.c.body, deliveries.c.tries, deliveries.c.due_at,
            webhooks.c.url, webhooks.c.secret, webhooks.c.failing_since, place.label("place"),
        )
        .select_from(deliveries.join(webhooks, webhooks.c.id == deliveries.c.webhook_id))
        .where(IS_PENDING, deliveries.c.due_at <= now)
        .subquery()
    )  # fmt: skip
    first = (
        select(waiting)
        .where(waiting.c.place <= AT_ONCE)
        .order_by(waiting.c.failing_since.is_not(None), waiting.c.place, waiting.c.due_at)
        .limit(most)
    )
    return [_due(row) for row in conn.execute(first)]


def _due(row: Row[Any]) -> Due:
    return Due(row.id, row.webhook_id, row.body, row.tries, row.url, row.secret)


def note(conn: Connection, every: Sequence[Tried], now: int) -> None:
    """Each once: one that somebody has noted meanwhile, or whose webhook is gone, stays as it is."""
    for tried in every:
        status = DELIVERED if tried.is_delivered else PENDING if tried.again_at is not None else FAILED
        due_ = tried.due
        counted = conn.execute(
            update(deliveries)
            .where(deliveries.c.id == due_.id, deliveries.c.tries == due_.tries, IS_PENDING)
            .values(
                status=status, tries=due_.tries + 1, due_at=tried.again_at, tried_at=now,
                http_status=tried.http_status, answer=tried.answer, error=tried.error,
            )
        )  # fmt: skip
        if not counted.rowcount:
            continue
        failing = None if tried.is_delivered else func.coalesce(webhooks.c.failing_since, now)
        conn.execute(update(webhooks).where(webhooks.c.id == due_.webhook_id).values(failing_since=failing))
        if tried.disable is not None:
            _disable(conn, due_.webhook_id, tried.disable, now)


def disable_failing(conn: Connection, failing: Collection[WebhookId], since: int, now: int) -> list[WebhookId]:
    """Those of them that have only failed since then."""
    found = select(webhooks.c.id, webhooks.c.failing_since).where(
        webhooks.c.id.in_(failing), webhooks.c.failing_since <= since, _IS_ON
    )
    rows = list(conn.execute(found))
    for row in rows:
        _disable(conn, row.id, f"nothing could be delivered since {text_of(row.failing_since)}", now)
    return [row.id for row in rows]


def log(conn: Connection, webhook: WebhookId, limit: int, before: DeliveryId | None = None) -> list[DeliveryRow]:
    """What it was told, newest first; `before` is the last one of the page before."""
    query = select(*_DELIVERY).where(deliveries.c.webhook_id == webhook)
    if before is not None:
        query = query.where(deliveries.c.id < before)
    return [DeliveryRow(*row) for row in conn.execute(query.order_by(deliveries.c.id.desc()).limit(limit))]


def prune(conn: Connection, before: int) -> int:
    """Ids sort by the time they were made, so that this needs no index of its own."""
    return conn.execute(delete(deliveries).where(deliveries.c.id < f"msg_{before:012x}")).rowcount
