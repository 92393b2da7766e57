"""Webhooks: made, listed, tried and deleted by who administers their project, with what each was told."""

from __future__ import annotations

import json
import logging
from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from fastapi import Path as PathParameter
from pydantic import Field
from sqlalchemy import Connection
from starlette.responses import Response

from contract.errors import FootplateError, InvalidSpec, NotFound, Problem
from contract.fields import Group, Many, Text, pattern
from contract.ids import DeliveryId, WebhookId, is_id, new_webhook_id
from contract.lifecycle import JobState
from service.api import shapes
from service.api.views import moment
from service.callers import Scope, needs
from service.deps import Services, StrictRoute, json_response, read_model, services_of
from service.problems import InvalidQuery
from service.store import webhooks
from service.store.rows import DeliveryRow, WebhookRow
from service.store.times import now_ms
from service.webhooks.sending import make_secret
from service.webhooks.targets import Allowed, Refused, aim, read_url

router = APIRouter(route_class=StrictRoute, tags=["webhooks"])
audit = logging.getLogger("footplate.audit")

MOST = 50
"""Of one project."""
BY_HAND = "by hand"
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


class NewWebhook(Group):
    url: Annotated[str, pattern(r"^https?://[!-~]+$", "must begin with https:// and have no spaces", 2000)]
    """Where to POST. It must resolve to a public address, unless the operator allows it."""
    states: Annotated[Many[Annotated[JobState, Field(strict=False)]], Field(min_length=1)] | None = None
    """Only of jobs that come into one of these. Left out: every state."""
    tags: Annotated[Many[Text], Field(min_length=1, max_length=64)] | None = None
    """Only of jobs with any of these tags. Left out: every job of the project."""
    description: Text | None = None


class WebhookPatch(Group):
    enabled: bool
    """False: it is told nothing, and what waits is not sent. True: it is told of what happens from now on."""


@router.post(
    "/webhooks",
    status_code=201,
    operation_id="create_webhook",
    summary="Tell a URL when jobs change their state; the answer shows its secret once",
    **shapes.answers(shapes.CreatedWebhook, 201, fails=(409,)),
    **shapes.takes(NewWebhook, required=True),
)
@needs(Scope.ADMIN)
async def create_webhook(request: Request) -> Response:
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
    return json_response({**_view(row), "secret": row.secret}, 201, {"Location": f"/webhooks/{row.id}"})


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
        states=None if given.states is None else json.dumps(sorted(set(given.states))),
        tags=None if given.tags is None else json.dumps(sorted(set(given.tags))),
        description=given.description,
        created_at=now_ms(),
        created_by=services.caller.by,
        failing_since=None,
        disabled_at=None,
        disabled_why=None,
    )


@router.get(
    "/webhooks", operation_id="list_webhooks", summary="The project's webhooks", **shapes.answers(shapes.WebhookList)
)
@needs(Scope.ADMIN)
async def list_webhooks(request: Request) -> Response:
    services = services_of(request)
    rows = await services.db.read(partial(webhooks.of_project, project=services.project))
    return json_response({"data": [_view(row) for row in rows], "next_cursor": None})


@router.get("/webhooks/{webhook}", operation_id="get_webhook", summary="One webhook", **shapes.answers(shapes.Webhook))
@needs(Scope.ADMIN)
async def get_webhook(request: Request, webhook: WebhookPath) -> Response:
    """Whether it works: since when it fails, or why it was disabled."""
    services = services_of(request)
    get = partial(webhooks.get, project=services.project, webhook=_id(webhook))
    return json_response(_view(await services.db.read(get)))


@router.patch(
    "/webhooks/{webhook}",
    operation_id="amend_webhook",
    summary="Disable or enable it",
    **shapes.answers(shapes.Webhook),
    **shapes.takes(WebhookPatch, required=True),
)
@needs(Scope.ADMIN)
async def amend_webhook(request: Request, webhook: WebhookPath) -> Response:
    services = services_of(request)
    one, given = _id(webhook), await read_model(request, WebhookPatch)

    def write(conn: Connection) -> WebhookRow:
        if given.enabled:
            return webhooks.enable(conn, services.project, one)
        return webhooks.disable(conn, services.project, one, BY_HAND, now_ms())

    row = await services.db.write(write)
    await services.webhooks.refresh()
    _audit(services, row, "enabled" if given.enabled else "disabled")
    return json_response(_view(row))


@router.delete(
    "/webhooks/{webhook}", status_code=204, operation_id="delete_webhook", summary="Forget it, and what it was told"
)
@needs(Scope.ADMIN)
async def delete_webhook(request: Request, webhook: WebhookPath) -> Response:
    services = services_of(request)
    row = await services.db.write(partial(webhooks.delete_webhook, project=services.project, webhook=_id(webhook)))
    await services.webhooks.refresh()
    _audit(services, row, "deleted")
    return Response(status_code=204)


@router.post(
    "/webhooks/{webhook}/test",
    status_code=202,
    operation_id="test_webhook",
    summary="Send it a ping, in a second or so",
    **shapes.answers(shapes.Delivery, 202, fails=(409,)),
)
@needs(Scope.ADMIN)
async def test_webhook(request: Request, webhook: WebhookPath) -> Response:
    """The delivery as it begins; its webhook's deliveries say what comes of it."""
    services = services_of(request)
    one = _id(webhook)

    def write(conn: Connection) -> DeliveryRow:
        row = webhooks.get(conn, services.project, one)
        if row.disabled_at is not None:
            raise WebhookDisabled(
                f"webhook {one} is disabled ({row.disabled_why}) and is told nothing",
                hint='PATCH it with {"enabled": true} first',
            )
        return webhooks.ping(conn, row, now_ms())

    return json_response(_delivery(await services.db.write(write)), 202)


@router.get(
    "/webhooks/{webhook}/deliveries",
    operation_id="list_deliveries",
    summary="What it was told and what came of it, newest first",
    **shapes.answers(shapes.DeliveryList),
)
@needs(Scope.ADMIN)
async def list_deliveries(
    request: Request,
    webhook: WebhookPath,
    cursor: Annotated[str | None, Query(description="next_cursor of the page before.", max_length=64)] = None,
    limit: Annotated[int, Query(ge=1, le=200)] = 50,
) -> Response:
    """Kept for 30 days."""
    services = services_of(request)
    one = _id(webhook)
    if cursor is not None and not is_id(cursor, "msg"):
        problem = Problem("/query/cursor", "bad_cursor", "is no cursor of this list", "send next_cursor as it came")
        raise InvalidQuery([problem])
    before = None if cursor is None else DeliveryId(cursor)

    def read(conn: Connection) -> list[DeliveryRow]:
        webhooks.get(conn, services.project, one)
        return webhooks.log(conn, one, limit + 1, before)

    rows = await services.db.read(read)
    more = rows[limit - 1].id if len(rows) > limit else None
    return json_response({"data": [_delivery(row) for row in rows[:limit]], "next_cursor": more})


def _id(text: str) -> WebhookId:
    if not is_id(text, "hook"):
        raise NotFound("there is no such webhook here", hint="GET /webhooks lists them by their ids")
    return WebhookId(text)


def _audit(services: Services, row: WebhookRow, what: str) -> None:
    """Without what follows the host: many receivers take a path for a password."""
    host = read_url(row.url).authority
    audit.info("webhook %s (%s, project %s) %s by %s", row.id, host, row.project, what, services.caller.by)


def _view(row: WebhookRow) -> dict[str, Any]:
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
        "created_at": moment(row.created_at),
        "created_by": row.created_by,
    }


def _delivery(row: DeliveryRow) -> dict[str, Any]:
    return {
        "id": row.id,
        "type": row.type,
        "job": row.job_id,
        "status": row.status,
        "tries": row.tries,
        "created_at": moment(row.created_at),
        "tried_at": moment(row.tried_at),
        "next_try_at": moment(row.due_at),
        "http_status": row.http_status,
        "answer": row.answer,
        "error": row.error,
        "body": json.loads(row.body),
    }
