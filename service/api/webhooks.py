"""Webhooks: made, listed, changed and deleted by who administers their project."""

from __future__ import annotations

import json
import logging
from functools import partial
from typing import Annotated, Any, cast

from fastapi import APIRouter, Request
from fastapi import Path as PathParameter
from pydantic import Field
from starlette.responses import Response

from footplate.contract.errors import FootplateError, InvalidSpec, NotFound, Problem
from footplate.contract.fields import DURATION, Group, Many, Text, pattern
from footplate.contract.ids import WebhookId, is_id, new_webhook_id
from footplate.contract.lifecycle import JobState
from footplate.contract.outbound import Allowed, Refused, read_url
from footplate.contract.resources.operations import CreatedWebhook, Webhook, WebhookList
from service.api.documented import takes
from service.api.views import moment
from service.callers import Scope, needs
from service.deps import Services, StrictRoute, read_model, services_of
from service.store import webhooks
from service.store.rows import WebhookRow
from service.store.times import now_ms
from service.webhooks.sending import make_secret
from service.webhooks.targets import aim

router = APIRouter(route_class=StrictRoute, tags=["webhooks"])
audit = logging.getLogger("footplate.audit")

MOST = 50
"""Of one project."""
LONGEST_OVERLAP_SECONDS = 7 * 86400.0
WebhookPath = Annotated[
    str, PathParameter(description="A webhook's id.", examples=["hook_019a9d0e2b3c7d4e9f5a6b7c8d9e0f1a"])
]


class TooManyWebhooks(FootplateError):
    code = "too_many_webhooks"
    status = 409
    title = "The project has as many webhooks as it may"


Url = Annotated[str, pattern(r"^https?://[!-~]+$", "must begin with https:// and have no spaces", 2000)]
States = Annotated[Many[Annotated[JobState, Field(strict=False)]], Field(min_length=1)]
Tags = Annotated[Many[Text], Field(min_length=1, max_length=64)]


class NewWebhook(Group):
    url: Url
    """Where to POST. It must resolve to a public address, unless the operator allows it."""
    states: States | None = None
    """Only of jobs that come into one of these. Left out: every state."""
    tags: Tags | None = None
    """Only of jobs with any of these tags. Left out: every job of the project."""
    description: Text | None = None


class WebhookPatch(Group):
    """What is not named stays."""

    url: Url = Field(default_factory=str)
    """Where to POST from now on, what waits included."""
    states: States | None = None
    """null: every state."""
    tags: Tags | None = None
    """null: every job of the project."""
    description: Text | None = None
    enabled: bool = Field(default_factory=bool)
    """False: it is told nothing, and what waits is not sent. True: it is told of what happens from now on."""


class Rotation(Group):
    overlap: Annotated[float, DURATION, Field(ge=0, le=LONGEST_OVERLAP_SECONDS)] = 86400.0
    """How long the secret before signs as well, in seconds or as "2h". 0 is for one that somebody else has seen."""


@router.post(
    "/webhooks",
    status_code=201,
    operation_id="create_webhook",
    summary="Tell a URL when jobs change their state; the answer shows its secret once",
    responses={409: {}},
    **takes(NewWebhook, required=True),
)
@needs(Scope.ADMIN)
async def create_webhook(request: Request, response: Response) -> CreatedWebhook:
    services = services_of(request)
    given = await read_model(request, NewWebhook)
    await _check(services, given.url)
    row = _new(given, services)
    if not await services.db.write(partial(webhooks.insert_webhook, row=row, most=MOST)):
        raise TooManyWebhooks(
            f"project {services.project!r} has {MOST} webhooks, and may have no more",
            hint="delete one that is not needed: GET /webhooks lists them",
        )
    await services.webhooks.refresh()
    _audit(services, row, "made")
    response.headers["Location"] = f"/webhooks/{row.id}"
    return CreatedWebhook(**_fields(row), secret=row.secret)


async def _check(services: Services, url: str) -> None:
    """Looked at again whenever something is sent: what is good now may not be then. Raises InvalidSpec."""
    try:
        await aim(read_url(url), Allowed.of(services.settings.webhooks_allow))
    except Refused as refused:
        hint = "a public https:// address; or let the operator name the host in FOOTPLATE_WEBHOOKS_ALLOW"
        raise InvalidSpec([Problem("/url", "not_reachable", f"this URL {refused}", hint)]) from refused


def _new(given: NewWebhook, services: Services) -> WebhookRow:
    return WebhookRow(
        id=new_webhook_id(),
        project=services.project,
        url=given.url,
        secret=make_secret(),
        states=webhooks.filter_text(given.states),
        tags=webhooks.filter_text(given.tags),
        description=given.description,
        created_at=now_ms(),
        created_by=services.caller.by,
        failing_since=None,
        disabled_at=None,
        disabled_why=None,
    )


@router.get("/webhooks", operation_id="list_webhooks", summary="The project's webhooks")
@needs(Scope.ADMIN)
async def list_webhooks(request: Request) -> WebhookList:
    services = services_of(request)
    rows = await services.db.read(partial(webhooks.of_project, project=services.project))
    return WebhookList(data=tuple(Webhook(**_fields(row)) for row in rows), next_cursor=None)


@router.get("/webhooks/{webhook}", operation_id="get_webhook", summary="One webhook")
@needs(Scope.ADMIN)
async def get_webhook(request: Request, webhook: WebhookPath) -> Webhook:
    """Whether it works: since when it fails, or why it was disabled."""
    services = services_of(request)
    get = partial(webhooks.get, project=services.project, webhook=webhook_id(webhook))
    return Webhook(**_fields(await services.db.read(get)))


@router.patch(
    "/webhooks/{webhook}",
    operation_id="amend_webhook",
    summary="Point it elsewhere, have it hear of something else, disable or enable it",
    **takes(WebhookPatch, required=True),
)
@needs(Scope.ADMIN)
async def amend_webhook(request: Request, webhook: WebhookPath) -> Webhook:
    services = services_of(request)
    one, given = webhook_id(webhook), await read_model(request, WebhookPatch)
    changes = cast("webhooks.Changes", given.model_dump(include=given.model_fields_set))
    if "url" in changes:
        await _check(services, given.url)
    amend = partial(webhooks.amend, project=services.project, webhook=one, changes=changes, now=now_ms())
    row = await services.db.write(amend)
    await services.webhooks.refresh()
    _audit(services, row, _what(changes))
    return Webhook(**_fields(row))


def _what(changes: webhooks.Changes) -> str:
    said = [name for name in changes if name != "enabled"]
    found = [f"changed in its {', '.join(said)}"] if said else []
    if "enabled" in changes:
        found.append("enabled" if changes["enabled"] else "disabled")
    return " and ".join(found) or "left as it is"


@router.post(
    "/webhooks/{webhook}/rotate",
    operation_id="rotate_webhook",
    summary="Give it another secret; the answer shows it once",
    **takes(Rotation),
)
@needs(Scope.ADMIN)
async def rotate_webhook(request: Request, webhook: WebhookPath) -> CreatedWebhook:
    """Until `old_secret_until` each delivery has two signatures, one by either secret: whoever checks them is given
    the new one meanwhile, and misses nothing."""
    services = services_of(request)
    one, given = webhook_id(webhook), await read_model(request, Rotation)
    until = now_ms() + round(given.overlap * 1000) if given.overlap else None
    secret = make_secret()
    rotate = partial(webhooks.rotate, project=services.project, webhook=one, secret=secret, old_until=until)
    row = await services.db.write(rotate)
    _audit(services, row, "given another secret")
    return CreatedWebhook(**_fields(row), secret=secret)


@router.delete(
    "/webhooks/{webhook}", status_code=204, operation_id="delete_webhook", summary="Forget it, and what it was told"
)
@needs(Scope.ADMIN)
async def delete_webhook(request: Request, webhook: WebhookPath) -> Response:
    services = services_of(request)
    row = await services.db.write(
        partial(webhooks.delete_webhook, project=services.project, webhook=webhook_id(webhook))
    )
    await services.webhooks.refresh()
    _audit(services, row, "deleted")
    return Response(status_code=204)


def webhook_id(text: str) -> WebhookId:
    if not is_id(text, "hook"):
        raise NotFound("there is no such webhook here", hint="GET /webhooks lists them by their ids")
    return WebhookId(text)


def _audit(services: Services, row: WebhookRow, what: str) -> None:
    """Without what follows the host: many receivers take a path for a password."""
    host = read_url(row.url).authority
    audit.info("webhook %s (%s, project %s) %s by %s", row.id, host, row.project, what, services.caller.by)


def _fields(row: WebhookRow) -> dict[str, Any]:
    return {
        "id": row.id,
        "project": row.project,
        "url": row.url,
        "states": None if row.states is None else json.loads(row.states),
        "tags": None if row.tags is None else json.loads(row.tags),
        "description": row.description,
        "enabled": row.disabled_at is None,
        "disabled_at": moment(row.disabled_at),
        "disabled_why": row.disabled_why,
        "failing_since": moment(row.failing_since),
        "old_secret_until": moment(row.old_until),
        "created_at": moment(row.created_at),
        "created_by": row.created_by,
    }
