"""Operations on API keys, for administrators of a project."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from footplate.sdk.models import Key, NewKey
from footplate.sdk.request import ApiRequest, all_resources, path_segment, send, send_for
from footplate.sdk.wire import Wire

SCOPES = ("read", "submit")
"""The default scopes of a key."""


class AsyncKeys:
    def __init__(self, wire: Wire) -> None:
        self._wire = wire

    async def create(
        self, name: str, project: str, *, scopes: Sequence[str] = SCOPES, expires_in: float | str | None = None
    ) -> NewKey:
        """Creates a key of a project ("*" is every project). Only this answer contains the key itself.

        `expires_in` is seconds, or "90d". The request is not repeated. If its answer is lost, find the key in `list`
        and delete it.
        """
        body: dict[str, Any] = {"name": name, "project": project, "scopes": list(scopes)}
        if expires_in is not None:
            body["expires_in"] = expires_in
        return await send_for(NewKey, self._wire, ApiRequest.with_json("POST", "/keys", body))

    async def list(self) -> Sequence[Key]:
        return await all_resources(Key, self._wire, "/keys")

    async def delete(self, key: str) -> None:
        """Deletes a key by its id. Requests with it are refused from now on, and its open streams are closed."""
        await send(self._wire, ApiRequest("DELETE", f"/keys/{path_segment(key, 'key')}"))
