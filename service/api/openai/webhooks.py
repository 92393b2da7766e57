"""OpenAI's routes for webhook endpoints. An endpoint is a webhook whose deliveries have OpenAI's form.

Deliveries are signed as OpenAI's are, so `client.webhooks.unwrap` verifies them.
"""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request

from footplate.contract.errors import FootplateError, NotFound
from footplate.contract.ids import JobId, WebhookId
from footplate.contract.lifecycle import JobState
from footplate.contract.outbound import Allowed
from service.api.openai.from_job import seconds
from service.api.openai.models import (
    EVENT_TYPES,
    Deleted,
    Endpoint,
    EndpointChanges,
    EndpointTest,
    EndpointTested,
    EndpointWithSecret,
    EventType,
    EventTypes,
    ListPage,
    NewEndpoint,
    SecretRotation,
)
from service.api.webhooks import (
    NewWebhook,
    WebhookPath,
    change_webhook,
    new_secret,
    remove_webhook,
    store_webhook,
    webhook_id,
)
from service.deps import AdminRoute, Services, read_model, services_of
from service.store import webhooks
from service.store.deliveries import secrets_at
from service.store.row_types import WebhookRow, loads
from service.store.times import now_ms
from service.webhooks.deliver import send

router = APIRouter(route_class=AdminRoute, include_in_schema=False)

ALL = "/v1/webhook_endpoints"
ONE = f"{ALL}/{{webhook}}"
TYPE = "fine_tuning.job."
DAY_SECONDS = 86400.0
SAMPLE_JOB = JobId("job_" + "0" * 32)
"""The job in the sample events of a test. No real job has this id."""


class Unanswered(FootplateError):
    code = "webhook_not_answered"
    status = 424
    title = "The receiver of the webhook did not answer"


@router.get("/v1/webhook_event_types")
async def list_event_types(request: Request) -> EventTypes:
    return EventTypes()


@router.post(ALL)
async def create_endpoint(request: Request) -> EndpointWithSecret:
    services = services_of(request)
    body = await read_model(request, NewEndpoint)
    new_webhook = NewWebhook(
        url=body.url, states=tuple(_states(body.event_types)), description=body.name, format=webhooks.OPENAI
    )
    return _with_secret(await store_webhook(services, new_webhook))


@router.get(ALL)
async def list_endpoints(
    request: Request,
    after: Annotated[str | None, Query(max_length=64)] = None,
    limit: Annotated[int, Query(ge=1, le=100)] = 20,
) -> ListPage[Endpoint]:
    """Lists the webhooks with deliveries in OpenAI's form, newest first."""
    services = services_of(request)
    rows = await services.db.read(webhooks.of_project, project=services.project)
    openai_rows = [row for row in reversed(rows) if row.format == webhooks.OPENAI and (after is None or row.id < after)]
    return ListPage.of([_shown(row) for row in openai_rows[:limit]], has_more=len(openai_rows) > limit)


@router.get(ONE)
async def get_endpoint(request: Request, webhook: WebhookPath) -> Endpoint:
    return _shown(await _endpoint(services_of(request), webhook))


@router.post(ONE)
async def change_endpoint(request: Request, webhook: WebhookPath) -> Endpoint:
    services = services_of(request)
    body = await read_model(request, EndpointChanges)
    changes: webhooks.Changes = {}
    if body.url is not None:
        changes["url"] = body.url
    if body.name is not None:
        changes["description"] = body.name
    if body.event_types is not None:
        changes["states"] = [state.value for state in _states(body.event_types)]
    row = await _endpoint(services, webhook)
    return _shown(await change_webhook(services, row.id, changes))


@router.post(f"{ONE}/rotate_secret")
async def rotate_secret(request: Request, webhook: WebhookPath) -> EndpointWithSecret:
    services = services_of(request)
    body = await read_model(request, SecretRotation)
    row = await _endpoint(services, webhook)
    overlap = DAY_SECONDS if body.keep_old_secret_active_for_24_hours else 0.0
    return _with_secret(await new_secret(services, row.id, overlap))


@router.post(f"{ONE}/test")
async def test_endpoint(request: Request, webhook: WebhookPath) -> EndpointTested:
    """Sends a sample event once, and answers with the receiver's status. The event is not in the list of deliveries."""
    services = services_of(request)
    body = await read_model(request, EndpointTest)
    row, now = await _endpoint(services, webhook), now_ms()
    sample = webhooks.openai_delivery(row, body.event_type, SAMPLE_JOB, now)
    allowed = Allowed.of(services.settings.webhooks_allow)
    secrets = secrets_at(row, now)
    answer = await send(row.url, secrets, sample.id, now // 1000, sample.body.encode(), allowed)
    if answer.status is None:
        detail = f"the receiver of webhook {row.id} did not answer: {answer.error}"
        raise Unanswered(detail, hint="webhooks.update() changes the URL")
    return EndpointTested(webhook_endpoint_id=row.id, event_type=body.event_type, status_code=answer.status)


@router.delete(ONE)
async def delete_endpoint(request: Request, webhook: WebhookPath) -> Deleted:
    services = services_of(request)
    row = await _endpoint(services, webhook)
    await remove_webhook(services, row.id)
    return Deleted(id=row.id, object="webhook_endpoint.deleted")


async def _endpoint(services: Services, text: str) -> WebhookRow:
    """Returns a webhook with deliveries in OpenAI's form. Raises NotFound, also for webhooks of the other form."""
    webhook: WebhookId = webhook_id(text)
    row = await services.db.read(webhooks.get, project=services.project, webhook=webhook)
    if row.format != webhooks.OPENAI:
        detail = f"webhook {webhook} sends deliveries in the format {row.format!r}, so it is not a webhook of /v1"
        raise NotFound(detail, hint=f"GET /webhooks/{webhook} shows it")
    return row


def _states(types: tuple[EventType, ...]) -> list[JobState]:
    return [JobState(kind.removeprefix(TYPE)) for kind in types]


def _shown(row: WebhookRow) -> Endpoint:
    states = loads(row.states)
    # A webhook without a filter of states receives all types.
    types = [kind for kind in EVENT_TYPES if states is None or kind.removeprefix(TYPE) in states]
    created_at = seconds(row.created_at)
    return Endpoint(id=row.id, created_at=created_at, name=row.description or "", url=row.url, event_types=types)


def _with_secret(row: WebhookRow) -> EndpointWithSecret:
    return EndpointWithSecret(**_shown(row).model_dump(), signing_secret=row.secret)
