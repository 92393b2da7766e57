"""Statements about webhooks: create and change them, and write their deliveries.

A delivery is written in the transaction that moves the job. So each committed move has a delivery, and a move
that was rolled back has none. Control sends the delivery after the commit (`deliveries.py`).
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, TypedDict

from sqlalchemy import Connection, bindparam, delete, func, insert, select, update

from footplate.contract.errors import NotFound
from footplate.contract.ids import JobId, WebhookId, new_delivery_id
from footplate.contract.lifecycle import TERMINAL, JobState, Reason
from service.store.mapping import columns_of, values_of
from service.store.row_types import NO_NEEDS, DeliveryRow, JobRow, WebhookRow
from service.store.stored_spec import read_spec, trains
from service.store.tables import IS_PENDING, deliveries, jobs, webhooks
from service.store.times import text_of

PENDING, DELIVERED, FAILED = "pending", "delivered", "failed"
PING = "ping"
BY_HAND = "by hand"
OPENAI: Literal["openai"] = "openai"
"""The form of deliveries that reports the end of a job as OpenAI's API does."""
_COLUMNS = columns_of(webhooks, WebhookRow)
IS_ON = webhooks.c.disabled_at.is_(None)
_OF_PROJECT = select(*_COLUMNS).where(webhooks.c.project == bindparam("project")).order_by(webhooks.c.id)
_LISTENING = _OF_PROJECT.where(IS_ON)
_HEARD = select(webhooks.c.project).where(IS_ON).distinct()
HAS_WEBHOOK = (
    select(webhooks.c.id)
    .where(webhooks.c.project == jobs.c.project, IS_ON)
    .correlate(jobs)
    .exists()
    .label("has_webhook")
)
"""True for a row of `jobs` whose project has an enabled webhook. The UPDATE that moves a job returns this value."""


@dataclass(frozen=True, slots=True)
class StateChange:
    """A change of a job's state. Its fields, in this order, are the `data` of a delivery."""

    job: JobId
    project: str
    name: str | None
    tags: str
    """JSON list of the job's tags."""
    state: JobState
    reason: Reason
    message: str | None
    attempt: int
    no: int

    @classmethod
    def of_new(cls, job: JobRow) -> StateChange:
        return cls(
            job.id, job.project, job.name, job.tags, job.state, job.reason, job.message, job.attempt, job.last_no
        )


class Changes(TypedDict, total=False):
    """The changes that a PATCH may make. A column whose key is missing does not change."""

    url: str
    states: list[str] | None
    tags: list[str] | None
    description: str | None
    enabled: bool


def insert_webhook(conn: Connection, row: WebhookRow, most: int) -> bool:
    """Inserts a webhook. Returns False if its project has reached the limit."""
    if conn.execute(select(func.count()).where(webhooks.c.project == row.project)).scalar_one() >= most:
        return False
    conn.execute(insert(webhooks), values_of(row))
    return True


def of_project(conn: Connection, project: str) -> list[WebhookRow]:
    return [WebhookRow(*row) for row in conn.execute(_OF_PROJECT, {"project": project})]


def get(conn: Connection, project: str, webhook: WebhookId, *, hold: bool = False) -> WebhookRow:
    """Returns a webhook. Raises NotFound, also for another project's webhook. With `hold`, the row is locked."""
    query = select(*_COLUMNS).where(webhooks.c.project == project, webhooks.c.id == webhook)
    row = conn.execute(query.with_for_update() if hold else query).one_or_none()
    if row is None:
        raise NotFound(f"there is no webhook {webhook!r} here", hint="GET /webhooks lists them")
    return WebhookRow(*row)


def projects_with_webhook(conn: Connection) -> frozenset[str]:
    """Returns the projects that have an enabled webhook."""
    return frozenset(conn.execute(_HEARD).scalars())


def delete_webhook(conn: Connection, project: str, webhook: WebhookId) -> WebhookRow:
    """Deletes a webhook and its deliveries. Raises NotFound."""
    row = get(conn, project, webhook)
    conn.execute(delete(deliveries).where(deliveries.c.webhook_id == webhook))
    conn.execute(delete(webhooks).where(webhooks.c.id == webhook))
    return row


def amend(conn: Connection, project: str, webhook: WebhookId, changes: Changes, now: int) -> WebhookRow:
    """Changes a webhook. Waiting deliveries go to its new URL. Raises NotFound."""
    old_row = get(conn, project, webhook)
    columns: dict[str, Any] = {name: changes.get(name) for name in ("url", "description") if name in changes}
    columns |= {name: filter_text(changes.get(name)) for name in ("states", "tags") if name in changes}
    if changes.get("enabled"):
        columns |= {"disabled_at": None, "disabled_why": None}
    if changes.get("enabled") or changes.get("url", old_row.url) != old_row.url:
        columns |= {"failing_since": None, "rests_until": None}
    if columns:
        conn.execute(update(webhooks).where(webhooks.c.id == webhook).values(**columns))
    if changes.get("enabled") is False:
        disable(conn, webhook, BY_HAND, now)
    return get(conn, project, webhook)


def filter_text(values: Iterable[str] | None) -> str | None:
    """Returns a filter of states or tags as JSON, sorted and without duplicates. None means no filter."""
    return None if values is None else json.dumps(sorted(set(values)))


def rotate(conn: Connection, project: str, webhook: WebhookId, secret: str, old_until: int | None) -> WebhookRow:
    """Replaces the secret. Until `old_until`, deliveries are also signed with the old secret. Raises NotFound."""
    row = get(conn, project, webhook, hold=True)
    old_secret = None if old_until is None else row.secret
    conn.execute(
        update(webhooks)
        .where(webhooks.c.id == webhook)
        .values(secret=secret, old_secret=old_secret, old_until=old_until)
    )
    return get(conn, project, webhook)


def disable(conn: Connection, webhook: WebhookId, why: str, now: int) -> None:
    """Disables a webhook and drops its waiting deliveries. If it is disabled already, its reason stays."""
    conn.execute(update(webhooks).where(webhooks.c.id == webhook, IS_ON).values(disabled_at=now, disabled_why=why))
    conn.execute(
        update(deliveries)
        .where(deliveries.c.webhook_id == webhook, IS_PENDING)
        .values(status=FAILED, due_at=None, error="the webhook was disabled before this was delivered")
    )


def write_deliveries(conn: Connection, change: StateChange, now: int) -> None:
    """Writes a delivery for each webhook of the job's project whose filters match."""
    enabled_webhooks = [WebhookRow(*row) for row in conn.execute(_LISTENING, {"project": change.project})]
    receivers = [webhook for webhook in enabled_webhooks if _wants(webhook, change)]
    if any(webhook.format == OPENAI for webhook in receivers):
        spec, needs = conn.execute(select(jobs.c.spec, jobs.c.needs).where(jobs.c.id == change.job)).one()
        # OpenAI's list of fine-tuning jobs leaves out other jobs, such as serving sessions.
        is_training = needs != NO_NEEDS and trains(read_spec(spec))
        receivers = [webhook for webhook in receivers if webhook.format != OPENAI or is_training]
    rows = [values_of(_delivery(webhook, change, now)) for webhook in receivers]
    if rows:
        conn.execute(insert(deliveries), rows)


def _delivery(webhook: WebhookRow, change: StateChange, now: int) -> DeliveryRow:
    if webhook.format == OPENAI:
        return openai_delivery(webhook, f"fine_tuning.job.{change.state}", change.job, now)
    kind = f"job.{change.state}"
    data = asdict(change) | {"tags": json.loads(change.tags)}
    return _new(webhook.id, kind, change.job, _body(kind, data, now), now)


def openai_delivery(webhook: WebhookRow, kind: str, job: JobId, now: int) -> DeliveryRow:
    """Returns a delivery as OpenAI sends it for a fine-tuning job. Its event has the id of the delivery."""
    row = _new(webhook.id, kind, job, "", now)
    event = {"object": "event", "id": row.id, "type": kind, "created_at": now // 1000, "data": {"id": job}}
    return replace(row, body=json.dumps(event, separators=(",", ":")))


def ping(conn: Connection, webhook: WebhookRow, now: int) -> DeliveryRow:
    """Writes a delivery without a job, for a test. It is sent before all waiting ones, even if the receiver fails."""
    body = _body(PING, {"webhook": webhook.id, "project": webhook.project}, now)
    row = replace(_new(webhook.id, PING, None, body, now), due_at=webhook.created_at)
    conn.execute(insert(deliveries), values_of(row))
    conn.execute(update(webhooks).where(webhooks.c.id == webhook.id).values(rests_until=None))
    return row


def _wants(webhook: WebhookRow, change: StateChange) -> bool:
    if webhook.format == OPENAI and change.state not in TERMINAL:
        return False
    if webhook.states is not None and change.state not in json.loads(webhook.states):
        return False
    return webhook.tags is None or not set(json.loads(webhook.tags)).isdisjoint(json.loads(change.tags))


def _body(kind: str, data: dict[str, Any], now: int) -> str:
    return json.dumps({"type": kind, "timestamp": text_of(now), "data": data}, separators=(",", ":"))


def _new(webhook: WebhookId, kind: str, job: JobId | None, body: str, now: int) -> DeliveryRow:
    return DeliveryRow(new_delivery_id(), webhook, kind, job, body, now, PENDING, tries=0, due_at=now)
