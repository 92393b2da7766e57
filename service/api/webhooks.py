"""Routes for webhooks and their deliveries. A key with the scope `admin` acts on the webhooks of its project."""

from __future__ import annotations

from typing import Annotated, Literal, TypeVar, cast

from fastapi import APIRouter, Query, Request
from fastapi import Path as PathParameter
from pydantic import Field
from sqlalchemy import Connection
from starlette.responses import Response

from footplate.contract.errors import FootplateError, InvalidSpec, NotFound, Problem
from footplate.contract.fields import DURATION, Group, Many, ShortText, pattern
from footplate.contract.ids import DeliveryId, WebhookId, is_id, new_webhook_id
from footplate.contract.lifecycle import JobState
from footplate.contract.outbound import Allowed, Refused, read_url
from footplate.contract.resources.operations import CreatedWebhook, Delivery, DeliveryList, Webhook, WebhookList
from service.api.documented import documented_body
from service.api.views import moment, shown
from service.deps import AdminRoute, Services, read_model, services_of
from service.problems import InvalidQuery
from service.store import deliveries, webhooks
from service.store.row_types import DeliveryRow, WebhookRow
from service.store.times import now_ms
from service.webhooks.sending import aim, make_secret

router = APIRouter(route_class=AdminRoute, tags=["webhooks"])

AnyWebhook = TypeVar("AnyWebhook", bound=Webhook)
MOST = 50
"""The most webhooks of one project."""
LONGEST_OVERLAP_SECONDS = 7 * 86400.0
WebhookPath = Annotated[
    str, PathParameter(description="A webhook's id.", examples=["hook_019a9d0e2b3c7d4e9f5a6b7c8d9e0f1a"])
]


class TooManyWebhooks(FootplateError):
    code = "too_many_webhooks"
    status = 409
    title = "The project has as many webhooks as it may"


class WebhookDisabled(FootplateError):
    code = "webhook_disabled"
    status = 409
    title = "The webhook is disabled"


Url = Annotated[str, pattern(r"^https?://[!-~]+$", "must begin with https:// and have no spaces", 2000)]
States = Annotated[Many[Annotated[JobState, Field(strict=False)]], Field(min_length=1)]
Tags = Annotated[Many[ShortText], Field(min_length=1, max_length=64)]


class NewWebhook(Group):
    url: Url
    """The URL to POST to. Its host must have a public address, unless the operator allows the host."""
    states: States | None = None
    """The states to report. Left out: every state."""
    tags: Tags | None = None
    """The tags whose jobs to report. Left out: every job of the project."""
    description: ShortText | None = None
    format: Literal["footplate", "openai"] = "footplate"
    """The form of the deliveries. `openai` sends only how jobs ended, for example as `fine_tuning.job.succeeded`."""


class WebhookPatch(Group):
    """The changes to a webhook. A field that is left out does not change."""

    url: Url = Field(default_factory=str)
    """The URL to POST to from now on, waiting deliveries included."""
    states: States | None = None
    """The states to report. null: every state."""
    tags: Tags | None = None
    """The tags whose jobs to report. null: every job of the project."""
    description: ShortText | None = None
    enabled: bool = Field(default_factory=bool)
    """False disables the webhook, and drops its waiting deliveries. True reports changes of jobs from now on."""


class Rotation(Group):
    overlap: Annotated[float, DURATION, Field(ge=0, le=LONGEST_OVERLAP_SECONDS)] = 86400.0
    """The time for which deliveries are also signed with the old secret, in seconds or as "2h". 0: stop at once, for
    a secret that has leaked."""


@router.post(
    "/webhooks",
    status_code=201,
    summary="Send the changes of jobs' states to a URL; the answer shows the secret once",
    responses={409: {}},
    **documented_body(
        NewWebhook, {"url": "https://hooks.example.com/footplate", "states": ["succeeded", "failed"]}, required=True
    ),
)
async def create_webhook(request: Request, response: Response) -> CreatedWebhook:
    services = services_of(request)
    body = await read_model(request, NewWebhook)
    row = await store_webhook(services, body)
    response.headers["Location"] = f"/webhooks/{row.id}"
    return _webhook(row, CreatedWebhook)


async def store_webhook(services: Services, body: NewWebhook) -> WebhookRow:
    """Stores a webhook. Raises InvalidSpec if its URL may not be reached, and TooManyWebhooks."""
    await _check(services, body.url)
    row = WebhookRow(
        id=new_webhook_id(),
        project=services.project,
        url=body.url,
        secret=make_secret(),
        states=webhooks.filter_text(body.states),
        tags=webhooks.filter_text(body.tags),
        description=body.description,
        created_at=now_ms(),
        created_by=services.caller.by,
        format=body.format,
    )
    if not await services.db.write(webhooks.insert_webhook, row=row, most=MOST):
        raise TooManyWebhooks(
            f"project {services.project!r} has {MOST} webhooks, and more are not allowed",
            hint="delete a webhook that is not needed: GET /webhooks lists them",
        )
    await services.webhooks.refresh()
    _audit(services, row, "made")
    return row


async def _check(services: Services, url: str) -> None:
    """Raises InvalidSpec if deliveries to the URL are forbidden. Each delivery checks again: addresses change."""
    try:
        await aim(read_url(url), Allowed.of(services.settings.webhooks_allow))
    except Refused as refusal:
        hint = "use a public https:// address, or ask the operator to add the host to FOOTPLATE_WEBHOOKS_ALLOW"
        raise InvalidSpec([Problem("/url", "not_reachable", f"this URL {refusal}", hint)]) from refusal


@router.get("/webhooks", summary="The project's webhooks")
async def list_webhooks(request: Request) -> WebhookList:
    services = services_of(request)
    rows = await services.db.read(webhooks.of_project, project=services.project)
    return WebhookList(data=tuple(_webhook(row, Webhook) for row in rows), next_cursor=None)


@router.get("/webhooks/{webhook}", summary="One webhook")
async def get_webhook(request: Request, webhook: WebhookPath) -> Webhook:
    """Returns a webhook, with the time since which it fails, or the reason why it was disabled."""
    services = services_of(request)
    row = await services.db.read(webhooks.get, project=services.project, webhook=webhook_id(webhook))
    return _webhook(row, Webhook)


@router.patch(
    "/webhooks/{webhook}",
    summary="Change a webhook's URL or filters, disable it or enable it",
    **documented_body(WebhookPatch, {"tags": ["demo"]}, required=True),
)
async def amend_webhook(request: Request, webhook: WebhookPath) -> Webhook:
    services = services_of(request)
    requested_id, patch = webhook_id(webhook), await read_model(request, WebhookPatch)
    changes = cast("webhooks.Changes", patch.model_dump(include=patch.model_fields_set))
    return _webhook(await change_webhook(services, requested_id, changes), Webhook)


async def change_webhook(services: Services, webhook: WebhookId, changes: webhooks.Changes) -> WebhookRow:
    """Changes a webhook. Raises NotFound, and InvalidSpec if its new URL may not be reached."""
    if "url" in changes:
        await _check(services, changes["url"])
    row = await services.db.write(webhooks.amend, services.project, webhook, changes, now_ms())
    await services.webhooks.refresh()
    _audit(services, row, _summary_of(changes))
    return row


def _summary_of(changes: webhooks.Changes) -> str:
    names = [name for name in changes if name != "enabled"]
    parts = [f"changed ({', '.join(names)})"] if names else []
    if "enabled" in changes:
        parts.append("enabled" if changes["enabled"] else "disabled")
    return " and ".join(parts) or "not changed"


@router.post(
    "/webhooks/{webhook}/rotate",
    summary="Make a new secret for a webhook; the answer shows it once",
    **documented_body(Rotation, {"overlap": "2h"}),
)
async def rotate_webhook(request: Request, webhook: WebhookPath) -> CreatedWebhook:
    """Makes a new secret. Until `old_secret_until`, each delivery has two signatures, one by each secret.

    So receivers can change to the new secret without missing a delivery.
    """
    services = services_of(request)
    requested_id, rotation = webhook_id(webhook), await read_model(request, Rotation)
    row = await new_secret(services, requested_id, rotation.overlap)
    return _webhook(row, CreatedWebhook)


async def new_secret(services: Services, webhook: WebhookId, overlap_seconds: float) -> WebhookRow:
    """Makes a new secret. Deliveries are also signed with the old one for `overlap_seconds`. Raises NotFound."""
    until = now_ms() + round(overlap_seconds * 1000) if overlap_seconds else None
    row = await services.db.write(webhooks.rotate, services.project, webhook, make_secret(), until)
    _audit(services, row, "given a new secret")
    return row


@router.delete("/webhooks/{webhook}", status_code=204, summary="Delete a webhook and its deliveries")
async def delete_webhook(request: Request, webhook: WebhookPath) -> Response:
    await remove_webhook(services_of(request), webhook_id(webhook))
    return Response(status_code=204)


async def remove_webhook(services: Services, webhook: WebhookId) -> None:
    """Deletes a webhook and its deliveries. Raises NotFound."""
    row = await services.db.write(webhooks.delete_webhook, project=services.project, webhook=webhook)
    await services.webhooks.refresh()
    _audit(services, row, "deleted")


@router.post(
    "/webhooks/{webhook}/test",
    status_code=202,
    summary="Send the webhook a ping, within about a second",
    responses={409: {}},
)
async def test_webhook(request: Request, webhook: WebhookPath) -> Delivery:
    """Returns the new delivery. Its result appears in the webhook's list of deliveries."""
    services = services_of(request)
    requested_id = webhook_id(webhook)

    def write(conn: Connection) -> DeliveryRow:
        row = webhooks.get(conn, services.project, requested_id)
        if row.disabled_at is not None:
            raise WebhookDisabled(
                f"webhook {row.id} is disabled ({row.disabled_why}), so nothing is sent",
                hint='PATCH it with {"enabled": true} first',
            )
        return webhooks.ping(conn, row, now_ms())

    return _delivery(await services.db.write(write))


@router.get("/webhooks/{webhook}/deliveries", summary="The webhook's deliveries and their results, newest first")
async def list_deliveries(
    request: Request,
    webhook: WebhookPath,
    cursor: Annotated[str | None, Query(description="next_cursor of the page before.", max_length=64)] = None,
    limit: Annotated[int, Query(description="The most deliveries of a page.", ge=1, le=200)] = 50,
) -> DeliveryList:
    """Lists deliveries of the last 30 days."""
    services = services_of(request)
    requested_id = webhook_id(webhook)
    if cursor is not None and not is_id(cursor, "msg"):
        problem = Problem("/query/cursor", "bad_cursor", "is not a cursor of this list", "send next_cursor unchanged")
        raise InvalidQuery([problem])
    before = None if cursor is None else DeliveryId(cursor)

    def read(conn: Connection) -> list[DeliveryRow]:
        webhooks.get(conn, services.project, requested_id)
        return deliveries.log(conn, requested_id, limit + 1, before)

    rows = await services.db.read(read)
    next_cursor = rows[limit - 1].id if len(rows) > limit else None
    return DeliveryList(data=tuple(map(_delivery, rows[:limit])), next_cursor=next_cursor)


def _delivery(row: DeliveryRow) -> Delivery:
    return shown(row, Delivery, job=row.job_id, next_try_at=moment(row.due_at))


def webhook_id(text: str) -> WebhookId:
    if not is_id(text, "hook"):
        raise NotFound(f"there is no webhook {text[:80]!r} in this project", hint="GET /webhooks lists them by id")
    return WebhookId(text)


def _audit(services: Services, row: WebhookRow, action: str) -> None:
    """Logs a change with the URL's host only, because the path of many receivers is a secret."""
    services.audit(f"webhook {row.id} ({read_url(row.url).authority}, project {row.project}) {action}")


def _webhook(row: WebhookRow, resource: type[AnyWebhook]) -> AnyWebhook:
    return shown(row, resource, enabled=row.disabled_at is None, old_secret_until=moment(row.old_until))
