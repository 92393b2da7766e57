"""Keys: made, listed and deleted by who administers their project."""

from __future__ import annotations

import json
import logging
from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, Request
from pydantic import Field
from sqlalchemy import Connection
from starlette.responses import Response

from footplate.contract.errors import FootplateError, InvalidSpec, NotFound, Problem
from footplate.contract.fields import DURATION, Group, Many, Text, pattern
from footplate.contract.ids import KeyId, is_id, new_key_id
from footplate.contract.resources.operations import CreatedKey, Key, KeyList
from service.api.documented import takes
from service.api.views import moment
from service.callers import Scope, needs
from service.deps import Services, StrictRoute, read_model, services_of
from service.keyring import make_key
from service.store import keys
from service.store.rows import KeyRow
from service.store.times import now_ms

router = APIRouter(route_class=StrictRoute, tags=["keys"])
audit = logging.getLogger("footplate.audit")

LONGEST_SECONDS = 10 * 365 * 86400.0


class NobodyIsAsked(FootplateError):
    code = "keys_not_in_force"
    status = 409
    title = "Keys are not in force"


class NewKey(Group):
    name: Text
    """Whose it is, or what for: histories and logs say it."""
    project: Annotated[str, pattern(r"^(\*|[A-Za-z0-9][A-Za-z0-9_.-]*)$", "must be the name of a project, or '*'", 64)]
    """`*` is every project."""
    scopes: Annotated[Many[Annotated[Scope, Field(strict=False)]], Field(min_length=1)] = (Scope.READ, Scope.SUBMIT)
    """read looks, submit acts on jobs, code brings code, admin makes keys and includes the others."""
    expires_in: Annotated[float, DURATION, Field(ge=1, le=LONGEST_SECONDS)] | None = None
    """Seconds, or "90d". Left out: until it is deleted."""


@router.post(
    "/keys",
    status_code=201,
    operation_id="create_key",
    summary="Make a key; the answer shows it once, and nobody ever again",
    **takes(NewKey, required=True),
)
@needs(Scope.ADMIN)
async def create_key(request: Request) -> CreatedKey:
    services = services_of(request)
    given = await read_model(request, NewKey)
    if not services.gatekeeper.needs_key:
        raise NobodyIsAsked(
            "this service asks nobody for a key, so one would protect nothing",
            hint="start it with FOOTPLATE_API_KEY, 22 random characters or more: that key makes the others",
        )
    if _reach(services) not in (None, given.project):
        detail = f"this key makes keys of project {services.project!r} only"
        raise InvalidSpec([Problem("/project", "not_your_project", detail)])
    secret, row = _new(given, services.caller.by)
    await services.db.write(partial(keys.insert_key, row=row))
    await services.gatekeeper.keyring.refresh()
    audit.info("key %s (%s, project %s, %s) made by %s", row.prefix, row.name, row.project, row.scopes, row.created_by)
    return CreatedKey(**_fields(row), key=secret)


def _new(given: NewKey, by: str | None) -> tuple[str, KeyRow]:
    secret, prefix = make_key()
    now = now_ms()
    return secret, KeyRow(
        id=new_key_id(),
        prefix=prefix,
        hash=keys.digest(secret),
        name=given.name,
        project=given.project,
        scopes=json.dumps(sorted(set(given.scopes))),
        created_at=now,
        created_by=by,
        expires_at=None if given.expires_in is None else now + round(given.expires_in * 1000),
        last_used_at=None,
    )


@router.get("/keys", operation_id="list_keys", summary="Its project's keys")
@needs(Scope.ADMIN)
async def list_keys(request: Request) -> KeyList:
    """Of a caller of every project: all, or those of the project that is named."""
    services = services_of(request)
    rows = await services.db.read(keys.everyone)
    reach = _reach(services)
    data = tuple(Key(**_fields(row)) for row in rows if reach in (None, row.project))
    return KeyList(data=data, next_cursor=None)


@router.delete("/keys/{key}", status_code=204, operation_id="delete_key", summary="Refuse it from now on")
@needs(Scope.ADMIN)
async def delete_key(request: Request, key: str) -> Response:
    """At once at this process, within a second at the others; the streams that it holds open are closed too."""
    services = services_of(request)
    if not is_id(key, "key"):
        raise NotFound("there is no such key here", hint="GET /keys lists them by their ids")

    def write(conn: Connection) -> KeyRow:
        return keys.delete_key(conn, KeyId(key), _reach(services))

    row = await services.db.write(write)
    await services.gatekeeper.keyring.refresh()
    audit.info("key %s (%s, project %s) deleted by %s", row.prefix, row.name, row.project, services.caller.by)
    return Response(status_code=204)


def _reach(services: Services) -> str | None:
    """None: every project's keys."""
    caller = services.caller
    return None if caller.is_everywhere and caller.asked is None else caller.project


def _fields(row: KeyRow) -> dict[str, Any]:
    return {
        "id": row.id,
        "prefix": row.prefix,
        "name": row.name,
        "project": row.project,
        "scopes": json.loads(row.scopes),
        "created_at": moment(row.created_at),
        "created_by": row.created_by,
        "expires_at": moment(row.expires_at),
        "last_used_at": moment(row.last_used_at),
    }
