"""Requests every route and socket with keys that may not use it. New routes are included automatically."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest
from fastapi.routing import APIWebSocketRoute
from sqlalchemy import update
from starlette.routing import BaseRoute

from footplate.contract.ids import new_job_id
from service.app import Guard, create_app
from service.auth import OPEN_PATHS, is_open
from service.callers import READS, SUBMITS, Needed, Scope, needed_by
from service.deps import StrictRoute
from service.store.tables import keys
from tests.service.api.conftest import KEY, SPEC, Api, Serve
from tests.service.api.test_keys import EVERYTHING, a_key, bearer

PLACES = {
    "job": "job_" + "0" * 32, "node": "node_" + "0" * 32, "key": "key_" + "0" * 32, "sha256": "0" * 64, "path": "x",
    "checkpoint": "latest", "webhook": "hook_" + "0" * 32, "file": f"file_{'0' * 64}.jsonl",
    "upload": "upload_" + "0" * 32, "model": "gpt", "run": "nightly",
    "permission": "cp_1",
}  # fmt: skip
"""Values for the parts of an address."""
BODIES: dict[tuple[str, str], dict[str, Any]] = {
    ("PATCH", "/jobs/{job}"): {"priority": 1},
    ("POST", "/jobs/{job}/predict"): {"inputs": [1]},
    ("PATCH", "/jobs/{job}/checkpoints/{checkpoint}"): {"pinned": True},
}
"""Bodies for routes that refuse an empty object before they look for the job."""
OTHER_SCOPES = {
    ("POST", "/tickets"): READS,
    ("POST", "/keys"): Needed(Scope.ADMIN),
    ("GET", "/keys"): Needed(Scope.ADMIN),
    ("DELETE", "/keys/{key}"): Needed(Scope.ADMIN),
    ("POST", "/webhooks"): Needed(Scope.ADMIN),
    ("GET", "/webhooks"): Needed(Scope.ADMIN),
    ("GET", "/webhooks/{webhook}"): Needed(Scope.ADMIN),
    ("PATCH", "/webhooks/{webhook}"): Needed(Scope.ADMIN),
    ("DELETE", "/webhooks/{webhook}"): Needed(Scope.ADMIN),
    ("POST", "/webhooks/{webhook}/rotate"): Needed(Scope.ADMIN),
    ("POST", "/webhooks/{webhook}/test"): Needed(Scope.ADMIN),
    ("GET", "/webhooks/{webhook}/deliveries"): Needed(Scope.ADMIN),
    ("GET", "/v1/webhook_event_types"): Needed(Scope.ADMIN),
    ("POST", "/v1/webhook_endpoints"): Needed(Scope.ADMIN),
    ("GET", "/v1/webhook_endpoints"): Needed(Scope.ADMIN),
    ("GET", "/v1/webhook_endpoints/{webhook}"): Needed(Scope.ADMIN),
    ("POST", "/v1/webhook_endpoints/{webhook}"): Needed(Scope.ADMIN),
    ("DELETE", "/v1/webhook_endpoints/{webhook}"): Needed(Scope.ADMIN),
    ("POST", "/v1/webhook_endpoints/{webhook}/rotate_secret"): Needed(Scope.ADMIN),
    ("POST", "/v1/webhook_endpoints/{webhook}/test"): Needed(Scope.ADMIN),
    ("POST", "/bundles"): Needed(Scope.CODE),
    ("DELETE", "/bundles/{sha256}"): Needed(Scope.CODE),
    ("DELETE", "/nodes/{node}"): Needed(Scope.ADMIN, everywhere=True),
    ("POST", "/nodes/{node}/drain"): Needed(Scope.ADMIN, everywhere=True),
    ("GET", "/metrics"): Needed(Scope.READ, everywhere=True),
}
"""Routes that need another scope than `read` to look or `submit` to act. They are repeated here on purpose."""


class Ask(NamedTuple):
    method: str
    """The HTTP method, or WS for a websocket."""
    path: str
    needed: Needed

    def address(self, **places: str) -> str:
        return re.sub(r":\w+}", "}", self.path).format(**{**PLACES, **places})


def asks(routes: list[BaseRoute]) -> Iterator[Ask]:
    for route in routes:
        if isinstance(route, APIWebSocketRoute):
            yield Ask("WS", route.path, READS)
        else:
            assert isinstance(route, StrictRoute), f"{route} checks no scope: make its router of StrictRoute"
            for method in sorted(route.methods or ()):
                yield Ask(method, route.path, needed_by(route.endpoint, {method}))


def guarded_asks(api: Api) -> list[Ask]:
    app = create_app(api.services)
    assert isinstance(app, Guard)
    result = [ask for ask in asks(app.app.routes) if not is_open(ask.path)]
    assert len(result) > 25
    unknown = {name for ask in result for name in re.findall(r"{(\w+)", ask.path)} - set(PLACES)
    assert not unknown, f"add values for {unknown} to PLACES"
    return result


async def answered(api: Api, ask: Ask, headers: dict[str, str], **places: str) -> tuple[int, str, dict[str, str]]:
    """Returns the status or the close code, the text of the answer, and the headers."""
    if ask.method == "WS":
        frames, code, reason = await api.frames(ask.address(**places), additional_headers=headers)
        assert not frames, f"{ask} sent {frames}"
        return code, reason, {}
    body = BODIES.get((ask.method, ask.path), {})
    json = None if ask.method in ("GET", "HEAD") else body
    answer = await api.client.request(ask.method, ask.address(**places), headers=headers, json=json)
    return answer.status_code, answer.text, dict(answer.headers)


@pytest.fixture
async def api(serve: Serve, sqlite_url: str) -> Api:
    return await serve(sqlite_url, api_key=KEY, rate_per_key=0, rate_per_address=0)


def test_only_four_paths_are_open_without_a_key(api: Api) -> None:
    assert set(OPEN_PATHS) == {"/", "/livez", "/readyz", "/docs"}


async def test_every_route_needs_its_intended_scope(api: Api) -> None:
    meant = {}
    for ask in guarded_asks(api):
        usual = READS if ask.method in ("GET", "HEAD", "WS") else SUBMITS
        meant[ask] = OTHER_SCOPES.get((ask.method, ask.path), usual)
    assert {ask: ask.needed for ask in meant} == meant, "add routes with another scope to OTHER_SCOPES"


async def test_every_route_refuses_missing_wrong_deleted_and_expired_keys(api: Api) -> None:
    deleted, expired = await a_key(api), await a_key(api)
    await api.client.delete(f"/keys/{deleted['id']}")
    await api.db.write(lambda conn: conn.execute(update(keys).values(expires_at=1).where(keys.c.id == expired["id"])))
    api.services.gatekeeper.keyring._loaded.clear()
    await api.services.gatekeeper.keyring.refresh()
    bad = {
        "none": "",
        "wrong": "Bearer fpk_00000000_" + "0" * 64,
        "another scheme": f"Basic {KEY}",
        "no scheme": KEY,
        "nearly": f"Bearer {KEY}x",
        "deleted": f"Bearer {deleted['key']}",
        "expired": f"Bearer {expired['key']}",
        "odd bytes": "Bearer f\xe4k_\xff",
    }
    asks = guarded_asks(api)
    # Keys are checked before the route is chosen, so each kind of bad key is tried on one route and one socket only.
    [route, socket] = [next(ask for ask in asks if ask.method == method) for method in ("GET", "WS")]
    for ask in asks:
        for what in bad if ask in (route, socket) else ("none", "wrong"):
            authorization = bad[what]
            headers = {"Authorization": authorization.encode("latin-1")} if authorization else {"Authorization": ""}
            if ask.method == "WS":
                headers = {"Authorization": authorization} if authorization.isascii() else {}
            code, content, answer_headers = await answered(api, ask, headers)  # type: ignore[arg-type]
            assert code == (4401 if ask.method == "WS" else 401), f"{ask} to a key that is {what}: {code} {content}"
            assert ask.method == "WS" or answer_headers["www-authenticate"].startswith("Bearer")


async def test_every_route_names_the_scope_that_a_key_lacks(api: Api) -> None:
    for ask in guarded_asks(api):
        scopes = [scope for scope in EVERYTHING if scope not in (ask.needed.scope, "admin")]
        key = await a_key(api, "*", scopes)
        code, content, _ = await answered(api, ask, bearer(key))
        assert code == (4403 if ask.method == "WS" else 403), f"{ask} to {scopes}: {code} {content}"
        assert ask.method == "HEAD" or f"'{ask.needed.scope}'" in content


async def test_a_project_administrator_cannot_use_routes_about_all_projects(api: Api) -> None:
    key = await a_key(api, "vision", EVERYTHING)
    for ask in guarded_asks(api):
        if ask.needed.everywhere:
            code, content, _ = await answered(api, ask, bearer(key))
            assert (code, "'*'" in content) == (403, True), f"{ask}: {code} {content}"


async def test_every_route_answers_for_a_foreign_job_as_for_an_unknown_one(api: Api) -> None:
    mine, theirs = await a_key(api, "vision"), await a_key(api, "speech")
    there = (await api.client.post("/jobs", json=SPEC, headers=bearer(theirs))).json()["id"]
    async with api.socket(f"/jobs/{there}/stream", additional_headers=bearer(theirs)) as watching:
        await watching.recv()
        for ask in guarded_asks(api):
            if "{job}" in ask.path:
                foreign = await answered(api, ask, bearer(mine), job=there)
                missing = await answered(api, ask, bearer(mine), job=(never := new_job_id()))
                assert foreign[0] == (4404 if ask.method == "WS" else 404), f"{ask} answered {foreign}: see BODIES"
                assert _same(foreign, there) == _same(missing, never), str(ask)
    unharmed = await api.client.get(f"/jobs/{there}", headers=bearer(theirs))
    assert (unharmed.json()["state"], unharmed.json()["version"]) == ("queued", 1)


def _same(answer: tuple[int, str, dict[str, str]], job: str) -> tuple[Any, ...]:
    code, content, headers = answer
    request_id = headers.get("x-request-id", "no id")
    names = {name: value for name, value in headers.items() if name not in ("x-request-id", "date")}
    return code, content.replace(job, "JOB").replace(request_id, "ID"), names
