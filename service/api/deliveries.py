"""Routes for the deliveries of a webhook: their log, and a ping to test the webhook."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request
from sqlalchemy import Connection

from footplate.contract.errors import FootplateError, Problem
from footplate.contract.ids import DeliveryId, is_id
from footplate.contract.resources.operations import Delivery, DeliveryList
from service.api.views import moment, resource_values
from service.api.webhooks import WebhookPath, webhook_id
from service.callers import Scope, needs
from service.deps import StrictRoute, services_of
from service.problems import InvalidQuery
from service.store import deliveries, webhooks
from service.store.rows import DeliveryRow
from service.store.times import now_ms

router = APIRouter(route_class=StrictRoute, tags=["webhooks"])


class WebhookDisabled(FootplateError):
    code = "webhook_disabled"
    status = 409
    title = "The webhook is disabled"


@router.post(
    "/webhooks/{webhook}/test",
    status_code=202,
    operation_id="test_webhook",
    summary="Send the webhook a ping, within about a second",
    responses={409: {}},
)
@needs(Scope.ADMIN)
async def test_webhook(request: Request, webhook: WebhookPath) -> Delivery:
    """Returns the new delivery. Its result appears in the webhook's list of deliveries."""
    services = services_of(request)
    webhook_to_test = webhook_id(webhook)

    def write(conn: Connection) -> DeliveryRow:
        row = webhooks.get(conn, services.project, webhook_to_test)
        if row.disabled_at is not None:
            raise WebhookDisabled(
                f"webhook {row.id} is disabled ({row.disabled_why}), so nothing is sent",
                hint='PATCH it with {"enabled": true} first',
            )
        return webhooks.ping(conn, row, now_ms())

    return _view(await services.db.write(write))


@router.get(
    "/webhooks/{webhook}/deliveries",
    operation_id="list_deliveries",
    summary="The webhook's deliveries and their results, newest first",
)
@needs(Scope.ADMIN)
async def list_deliveries(
    request: Request,
    webhook: WebhookPath,
    cursor: Annotated[str | None, Query(description="next_cursor of the page before.", max_length=64)] = None,
    limit: Annotated[int, Query(ge=1, le=200)] = 50,
) -> DeliveryList:
    """Lists deliveries of the last 30 days."""
    services = services_of(request)
    listed = webhook_id(webhook)
    if cursor is not None and not is_id(cursor, "msg"):
        problem = Problem("/query/cursor", "bad_cursor", "is not a cursor of this list", "send next_cursor as it came")
        raise InvalidQuery([problem])
    before = None if cursor is None else DeliveryId(cursor)

    def read(conn: Connection) -> list[DeliveryRow]:
        webhooks.get(conn, services.project, listed)
        return deliveries.log(conn, listed, limit + 1, before)

    rows = await services.db.read(read)
    more = rows[limit - 1].id if len(rows) > limit else None
    return DeliveryList(data=tuple(map(_view, rows[:limit])), next_cursor=more)


def _view(row: DeliveryRow) -> Delivery:
    return Delivery(**resource_values(row, Delivery, job=row.job_id, next_try_at=moment(row.due_at)))
