"""All valid keys, in memory, so that a request with a key costs one hash and does not read SQL.

    fpk_3f9a1c2b_<64 hex digits>     the first two parts are the prefix, which is public; the rest is 256 random bits

The keys are read again twice a second. So a key that another API process has deleted is refused within a second, and
its open streams are closed. While SQL is unreachable the keys stay as they are, and no key can be deleted.
"""

from __future__ import annotations

import hmac
import json
import secrets
import time
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256

from footplate.contract.errors import FootplateError, Unauthorized
from footplate.contract.ids import KeyId
from service.caches import Poller
from service.callers import EVERYWHERE, Caller, Scope
from service.rate_limit import Quota
from service.redaction import MARK
from service.settings import ServiceSettings
from service.store import keys
from service.store.database import Database
from service.store.row_types import KeyRow
from service.store.times import now_ms, text_of

MARK_SECONDS = 60.0
"""The interval at which the times of the keys' last use are stored."""


@dataclass(frozen=True, slots=True)
class _LoadedKey:
    row: KeyRow
    digest: bytes
    caller: Caller

    def has_expired(self, now: int) -> bool:
        return self.row.expires_at is not None and self.row.expires_at <= now


def make_key() -> tuple[str, str]:
    """Returns a new key and its prefix."""
    prefix = f"{MARK}_{secrets.token_hex(4)}"
    return f"{prefix}_{secrets.token_hex(32)}", prefix


class Keyring(Poller):
    seconds = 0.5

    def __init__(self, settings: ServiceSettings, db: Database) -> None:
        super().__init__(db)
        self._settings = settings
        secret = settings.api_key.get_secret_value() if settings.api_key else None
        self._bootstrap = sha256(secret.encode()).digest() if secret else None
        self.bootstrap = Caller("the bootstrap key", EVERYWHERE, frozenset({Scope.ADMIN}), quota=self._quota())
        self._loaded: dict[str, _LoadedKey] = {}
        self._used: set[KeyId] = set()
        self._mark_at = time.monotonic() + MARK_SECONDS

    @property
    def is_in_force(self) -> bool:
        """True if requests need a key, which is so if there is a bootstrap key."""
        return self._bootstrap is not None

    def caller(self, key: bytes) -> Caller:
        """Returns the caller with this key. Raises Unauthorized for a key that is not valid."""
        digest = sha256(key).digest()
        if self._bootstrap is not None and hmac.compare_digest(digest, self._bootstrap):
            return self.bootstrap
        prefix = "_".join(key.decode("latin-1").split("_", 2)[:2])
        loaded_key = self._loaded.get(prefix)
        if loaded_key is None or not hmac.compare_digest(digest, loaded_key.digest):
            raise _no_key("this service has no such key")
        return self._valid(loaded_key)

    def caller_of(self, key: KeyId | None) -> Caller:
        """Returns the caller by the id of a key. None is the bootstrap key. Raises Unauthorized for a deleted key."""
        if key is None:
            return self.bootstrap
        loaded = next((loaded for loaded in self._loaded.values() if loaded.row.id == key), None)
        if loaded is None:
            raise _no_key("the key of this ticket was deleted")
        return self._valid(loaded)

    def _valid(self, loaded_key: _LoadedKey) -> Caller:
        if loaded_key.has_expired(now_ms()):
            raise _no_key(f"the key {loaded_key.row.prefix} expired at {text_of(loaded_key.row.expires_at or 0)}")
        self._used.add(loaded_key.row.id)
        return loaded_key.caller

    async def start(self) -> None:
        """Reads the keys, and again at an interval. Does nothing if requests need no key."""
        if self.is_in_force:
            await super().start()

    async def close(self) -> None:
        await super().close()
        with suppress(FootplateError):
            await self._store_used()

    async def _read(self) -> None:
        rows = await self._db.read(keys.all_keys)
        old_keys, now = self._loaded, now_ms()
        self._loaded = {row.prefix: self._load(old_keys.get(row.prefix), row) for row in rows}
        for old_key in old_keys.values():
            if self._loaded.get(old_key.row.prefix) is not old_key or old_key.has_expired(now):
                old_key.caller.quota.end_all()
        if time.monotonic() >= self._mark_at:
            self._mark_at = time.monotonic() + MARK_SECONDS
            await self._store_used()

    def _load(self, loaded_key: _LoadedKey | None, row: KeyRow) -> _LoadedKey:
        if loaded_key is not None and loaded_key.row.id == row.id:
            return loaded_key
        scopes = frozenset(map(Scope, json.loads(row.scopes)))
        caller = Caller(row.name, row.project, scopes, row.id, row.prefix, quota=self._quota())
        return _LoadedKey(row, bytes.fromhex(row.hash), caller)

    def _quota(self) -> Quota:
        return Quota(self._settings.rate_per_key, self._settings.streams_per_key)

    async def _store_used(self) -> None:
        key_ids, self._used = self._used, set()
        if key_ids:
            await self._db.write(keys.mark_used, key_ids, now_ms())


def _no_key(message: str) -> Unauthorized:
    return Unauthorized(message, hint="send a valid key as 'Authorization: Bearer <key>'")
