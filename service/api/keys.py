"""Routes for keys. A key with the scope `admin` makes, lists and deletes the keys of its project."""

from __future__ import annotations

import json
from typing import Annotated

from fastapi import APIRouter, Request
from pydantic import Field
from starlette.responses import Response

from footplate.contract.errors import FootplateError, InvalidSpec, NotFound, Problem
from footplate.contract.fields import DURATION, Group, Many, ShortText, pattern
from footplate.contract.ids import KeyId, is_id, new_key_id
from footplate.contract.resources.operations import CreatedKey, Key, KeyList
from service.api.documented import documented_body
from service.api.views import shown
from service.callers import Scope
from service.deps import AdminRoute, read_model, services_of
from service.keyring import make_key
from service.store import keys
from service.store.row_types import KeyRow
from service.store.times import now_ms

router = APIRouter(route_class=AdminRoute, tags=["keys"])

LONGEST_SECONDS = 10 * 365 * 86400.0


class KeysNotInForce(FootplateError):
    code = "keys_not_in_force"
    status = 409
    title = "This service works without keys"


class NewKey(Group):
    name: ShortText
    """The owner or purpose of the key, which histories and logs show."""
    project: Annotated[str, pattern(r"^(\*|[A-Za-z0-9][A-Za-z0-9_.-]*)$", "must be the name of a project, or '*'", 64)]
    """The project of the key. `*` is every project."""
    scopes: Annotated[Many[Annotated[Scope, Field(strict=False)]], Field(min_length=1)] = (Scope.READ, Scope.SUBMIT)
    """`read` reads, `submit` acts on jobs, `code` uploads code, and `admin` makes keys and includes the others."""
    expires_in: Annotated[float, DURATION, Field(ge=1, le=LONGEST_SECONDS)] | None = None
    """The lifetime, in seconds or as "90d". Left out: the key is valid until it is deleted."""


@router.post(
    "/keys",
    status_code=201,
    summary="Make a key, which only this answer shows",
    **documented_body(NewKey, {"name": "the vision team", "project": "vision", "expires_in": "90d"}, required=True),
)
async def create_key(request: Request) -> CreatedKey:
    services = services_of(request)
    body = await read_model(request, NewKey)
    if not services.gatekeeper.keyring.is_in_force:
        raise KeysNotInForce(
            "this service works without keys, so a key would protect nothing",
            hint="set FOOTPLATE_API_KEY to 22 or more random characters and restart the service; this key can then "
            "make other keys",
        )
    if services.caller.limit not in (None, body.project):
        detail = f"this key may make keys of project {services.project!r} only"
        raise InvalidSpec([Problem("/project", "not_your_project", detail)])
    (secret, prefix), now = make_key(), now_ms()
    row = KeyRow(
        id=new_key_id(),
        prefix=prefix,
        hash=keys.digest(secret),
        name=body.name,
        project=body.project,
        scopes=json.dumps(sorted(set(body.scopes))),
        created_at=now,
        created_by=services.caller.by,
        expires_at=None if body.expires_in is None else now + round(body.expires_in * 1000),
    )
    await services.db.write(keys.insert_key, row=row)
    await services.gatekeeper.keyring.refresh()
    services.audit(f"key {row.prefix} ({row.name}, project {row.project}, {row.scopes}) made")
    return shown(row, CreatedKey, key=secret)


@router.get("/keys", summary="The project's keys")
async def list_keys(request: Request) -> KeyList:
    """Lists the keys of the project.

    A key that is valid for every project lists all keys, if the request names no project.
    """
    services = services_of(request)
    rows = await services.db.read(keys.all_keys)
    limit = services.caller.limit
    data = tuple(shown(row, Key) for row in rows if limit in (None, row.project))
    return KeyList(data=data, next_cursor=None)


@router.delete("/keys/{key}", status_code=204, summary="Delete a key, so that it is refused")
async def delete_key(request: Request, key: str) -> Response:
    """Deletes a key and closes its open streams. Other API processes refuse the key within a second."""
    services = services_of(request)
    if not is_id(key, "key"):
        raise NotFound(f"there is no key {key[:80]!r} in this project", hint="GET /keys lists them by id")
    row = await services.db.write(keys.delete_key, KeyId(key), services.caller.limit)
    await services.gatekeeper.keyring.refresh()
    services.audit(f"key {row.prefix} ({row.name}, project {row.project}) deleted")
    return Response(status_code=204)
