"""Keys: for who administers a project, with and without `await`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from urllib.parse import quote

from footplate.sdk.models import Key, NewKey
from footplate.sdk.request import Ask, ask, ask_json
from footplate.sdk.waiting import Wire, now

SCOPES = ("read", "submit")
"""What a key may do where nothing is said."""


class AsyncKeys:
    def __init__(self, wire: Wire) -> None:
        self._wire = wire

    async def create(
        self, name: str, project: str, *, scopes: Sequence[str] = SCOPES, expires_in: float | str | None = None
    ) -> NewKey:
        """A key of a project ("*" is every one). The answer has it, and nobody ever sees it again. `expires_in` is
        seconds, or "90d". Not sent twice: who loses the answer finds the key in `list`, and deletes it."""
        body: dict[str, Any] = {"name": name, "project": project, "scopes": list(scopes)}
        if expires_in is not None:
            body["expires_in"] = expires_in
        return NewKey.model_validate(await ask_json(self._wire, Ask.with_json("POST", "/keys", body)))

    async def list(self) -> Sequence[Key]:
        told = await ask_json(self._wire, Ask("GET", "/keys"))
        return [Key.model_validate(one) for one in told["data"]]

    async def delete(self, key: str) -> None:
        """Refused from now on, by its id; the streams that it holds open are closed."""
        await ask(self._wire, Ask("DELETE", f"/keys/{quote(key, safe='')}"))


class Keys:
    """`print(client.keys.create("ci", "vision", scopes=["submit"]).key)`"""

    def __init__(self, keys: AsyncKeys) -> None:
        self._keys = keys

    def create(
        self, name: str, project: str, *, scopes: Sequence[str] = SCOPES, expires_in: float | str | None = None
    ) -> NewKey:
        """A key of a project ("*" is every one). The answer has it, and nobody ever sees it again. `expires_in` is
        seconds, or "90d". Not sent twice: who loses the answer finds the key in `list`, and deletes it."""
        return now(self._keys.create(name, project, scopes=scopes, expires_in=expires_in))

    def list(self) -> Sequence[Key]:
        return now(self._keys.list())

    def delete(self, key: str) -> None:
        """Refused from now on, by its id; the streams that it holds open are closed."""
        now(self._keys.delete(key))
