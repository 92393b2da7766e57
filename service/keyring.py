"""Every key that is good now, at hand: a request with a key costs one hash and no SQL.

    fpk_3f9a1c2b_<64 hex digits>     the first two parts are its prefix, which may be seen; the rest are 256 random bits

Read anew twice a second, so a key that another API process has deleted is refused within a second, and the sockets that
it holds open are closed. While SQL is away the keys stay as they were: nobody can delete one then either.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import secrets
import time
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from hashlib import sha256

from footplate.contract.errors import FootplateError, Unauthorized
from footplate.contract.ids import KeyId
from service.callers import EVERYWHERE, Caller, Scope, Standing
from service.redaction import MARK
from service.settings import ServiceSettings
from service.store import keys
from service.store.database import Database
from service.store.rows import KeyRow
from service.store.times import now_ms, text_of

REFRESH_SECONDS = 0.5
MARK_SECONDS = 60.0
"""How often it is written down which keys were used."""


@dataclass(frozen=True, slots=True)
class _Known:
    row: KeyRow
    digest: bytes
    caller: Caller

    def has_expired(self, now: int) -> bool:
        return self.row.expires_at is not None and self.row.expires_at <= now


def make_key() -> tuple[str, str]:
    """A new key, and its prefix."""
    prefix = f"{MARK}_{secrets.token_hex(4)}"
    return f"{prefix}_{secrets.token_hex(32)}", prefix


class Keyring:
    def __init__(self, settings: ServiceSettings, db: Database) -> None:
        self._settings, self._db = settings, db
        secret = settings.api_key.get_secret_value() if settings.api_key else None
        self._bootstrap = sha256(secret.encode()).digest() if secret else None
        self.bootstrap = Caller("the bootstrap key", EVERYWHERE, frozenset({Scope.ADMIN}), standing=self._standing())
        self._known: dict[str, _Known] = {}
        self._used: set[KeyId] = set()
        self._lock = asyncio.Lock()
        self._task: asyncio.Task[None] | None = None

    @property
    def is_in_force(self) -> bool:
        """Whether anybody is asked for a key."""
        return self._bootstrap is not None

    def caller(self, key: bytes) -> Caller:
        """Whose key it is. Raises Unauthorized."""
        digest = sha256(key).digest()
        if self._bootstrap is not None and hmac.compare_digest(digest, self._bootstrap):
            return self.bootstrap
        known = self._known.get(prefix_of(key.decode("latin-1")))
        if known is None or not hmac.compare_digest(digest, known.digest):
            raise _no_key("this key is not one of ours")
        return self._good(known)

    def caller_of(self, key: KeyId | None) -> Caller:
        """Who holds a key by its id; None is the bootstrap key. Raises Unauthorized when it is gone."""
        if key is None:
            return self.bootstrap
        known = next((one for one in self._known.values() if one.row.id == key), None)
        if known is None:
            raise _no_key("the key behind this ticket is gone")
        return self._good(known)

    def _good(self, known: _Known) -> Caller:
        if known.has_expired(now_ms()):
            raise _no_key(f"the key {known.row.prefix} expired at {text_of(known.row.expires_at or 0)}")
        self._used.add(known.row.id)
        return known.caller

    async def start(self) -> None:
        """Without a bootstrap key nobody is asked for one, and none is looked for."""
        if self.is_in_force and self._task is None:
            with suppress(FootplateError):
                await self.refresh()
            self._task = asyncio.create_task(self._keep_fresh())

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            with suppress(FootplateError):
                await self._write_down()

    async def refresh(self) -> None:
        """One at a time: an older look must not bring back what a newer one has missed."""
        async with self._lock:
            rows = await self._db.read(keys.everyone)
            old, now = self._known, now_ms()
            self._known = {row.prefix: self._keep(old.get(row.prefix), row) for row in rows}
        for known in old.values():
            if self._known.get(known.row.prefix) is not known or known.has_expired(now):
                known.caller.standing.end_all()

    def _keep(self, known: _Known | None, row: KeyRow) -> _Known:
        if known is not None and known.row.id == row.id:
            return known
        scopes = frozenset(map(Scope, json.loads(row.scopes)))
        caller = Caller(row.name, row.project, scopes, row.id, row.prefix, standing=self._standing())
        return _Known(row, bytes.fromhex(row.hash), caller)

    def _standing(self) -> Standing:
        return Standing(self._settings.rate_per_key, self._settings.streams_per_key)

    async def _keep_fresh(self) -> None:
        mark_at = time.monotonic() + MARK_SECONDS
        while True:
            await asyncio.sleep(REFRESH_SECONDS)
            with suppress(FootplateError):
                await self.refresh()
                if time.monotonic() >= mark_at:
                    mark_at = time.monotonic() + MARK_SECONDS
                    await self._write_down()

    async def _write_down(self) -> None:
        used, self._used = self._used, set()
        if used:
            await self._db.write(partial(keys.mark_used, used=used, now=now_ms()))


def prefix_of(key: str) -> str:
    return "_".join(key.split("_", 2)[:2])


def _no_key(message: str) -> Unauthorized:
    return Unauthorized(message, hint="send the right one as 'Authorization: Bearer <key>'")
