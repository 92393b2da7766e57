"""Who may ask: the key, one-time tickets for browsers' sockets, and where a request may come from."""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from urllib.parse import parse_qs, parse_qsl

from footplate.contract.errors import Forbidden, Problem, Unauthorized
from service.callers import EVERYWHERE, NOBODY, READS, Caller, Scope
from service.keyring import Keyring
from service.problems import BadHost, HeadersTooLarge, InvalidQuery
from service.rate_limit import Strangers
from service.redaction import MARK
from service.settings import ServiceSettings
from service.store import keys
from service.store.database import Database
from service.store.rows import TicketRow
from service.store.times import now_ms

OPEN_PATHS = frozenset({"/", "/livez", "/readyz", "/docs"})
"""Answered without a key: what says nothing about jobs. The page asks its user for one."""
OPEN_PREFIX = "/dashboard/"
SUBPROTOCOL = "footplate"
KEY_SUBPROTOCOL = "footplate.key."
"""A browser cannot send headers with a websocket, but it can offer subprotocols: `footplate` and this with the key."""
TICKET_SECONDS = 30
MOST_HEADERS, LONGEST_HEADER = 100, 8192
"""How many, and bytes of one's value: some are parsed, item by item."""
MOST_PARAMETERS = 50
"""Of a query. No address takes half as many."""
SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})
KEY_NAMES = frozenset({"key", "api_key", "apikey", "api-key", "token", "access_token", "authorization"})
"""What people call the query parameter that would carry a key. There is none."""
LOCAL = Caller("", EVERYWHERE, frozenset({Scope.ADMIN}))
"""Who asks where nobody is asked for a key: whoever is on this machine."""
_PROJECT = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")


class ForeignPage(Forbidden):
    """Told before a socket's handshake: a page that may not ask learns nothing else."""


@dataclass(slots=True)
class Credentials:
    """What the headers of one request say about who asks."""

    host: bytes = b""
    origin: bytes = b""
    authorization: bytes = b""
    request_id: bytes = b""
    address: str = ""
    is_flood: bool = False
    """More headers, or a longer one, than anybody needs."""

    @classmethod
    def of(cls, headers: Sequence[tuple[bytes, bytes]], client: tuple[str, int] | None) -> Credentials:
        found = cls(address=client[0] if client else "", is_flood=len(headers) > MOST_HEADERS)
        for name, value in headers:
            if len(value) > LONGEST_HEADER:
                found.is_flood = True
            elif name == b"host":
                found.host = value
            elif name == b"authorization":
                found.authorization = value
            elif name == b"origin":
                found.origin = value
            elif name == b"x-request-id":
                found.request_id = value
        return found


class Gatekeeper:
    """Raises what the request lacks; returns who asks when it may pass."""

    def __init__(self, settings: ServiceSettings, db: Database) -> None:
        self._db = db
        self.keyring = Keyring(settings, db)
        self._strangers = Strangers(settings.rate_per_address if self.needs_key else 0)
        self._origins = frozenset(one.strip().rstrip("/") for one in settings.allowed_origins.split(",") if one.strip())
        self._names = None if self.needs_key else LOOPBACK_NAMES | {settings.host}

    @property
    def needs_key(self) -> bool:
        return self.keyring.is_in_force

    def check_request(self, method: str, path: str, query: bytes, given: Credentials) -> Caller:
        """Counts who asks before it parses anything that they wrote: what cannot be parsed costs them a turn, too."""
        refused: Unauthorized | None = None
        caller = NOBODY
        if is_open(path):
            self._strangers.count(given.address)
        else:
            caller, refused = self._counted(given)
        if given.is_flood:
            raise HeadersTooLarge(f"a request may have {MOST_HEADERS} headers, of {LONGEST_HEADER:,} bytes each")
        self._check_host(given)
        if method not in SAFE_METHODS:
            self._check_origin(given)
        if is_open(path):
            refuse_keys_in(query)
            return NOBODY
        return self._about(query, caller, refused)

    def _counted(self, given: Credentials) -> tuple[Caller, Unauthorized | None]:
        """Who asks, by the header alone; and what to answer if that is nobody. Raises TooManyRequests."""
        if not self.needs_key:
            return LOCAL, None
        try:
            caller = self._bearer(given.authorization)
        except Unauthorized as refused:
            self._strangers.count(given.address)
            return NOBODY, refused
        caller.standing.count(time.monotonic())
        return caller, None

    def _about(self, query: bytes, caller: Caller, refused: Unauthorized | None) -> Caller:
        if query:
            refuse_keys_in(query)
        if refused is not None:
            raise refused
        return caller.about(_project_in(query)) if b"project" in query else caller

    def _bearer(self, authorization: bytes) -> Caller:
        if not authorization:
            raise Unauthorized("this needs a key", hint="send it as 'Authorization: Bearer <key>'")
        scheme, _, key = authorization.partition(b" ")
        if scheme.lower() != b"bearer":
            raise Unauthorized("this is no bearer key", hint="send it as 'Authorization: Bearer <key>'")
        return self.keyring.caller(key.strip())

    def _check_origin(self, given: Credentials) -> None:
        """A page of another site must not act for the user whose browser shows it. Programs send no Origin."""
        if not given.origin:
            return
        origin, host = given.origin.decode("latin-1"), given.host.decode("latin-1")
        # Compared as text: a browser sends its scheme and host and nothing else, so that nothing needs to be parsed.
        if origin.rstrip("/") not in self._origins and origin.partition("://")[2].lower() != host.lower():
            hint = "list it in FOOTPLATE_ALLOWED_ORIGINS if that page is yours"
            raise ForeignPage(f"a page from {origin!r} may not act on this service", hint=hint)

    async def check_socket(self, query: bytes, subprotocols: Sequence[str], given: Credentials) -> Caller:
        """By the header; or, from a browser, which cannot send one with a socket, by a subprotocol or a ticket."""
        offered = next((one for one in subprotocols if one.startswith(KEY_SUBPROTOCOL)), None)
        if offered and self.needs_key:
            given = replace(given, authorization=b"Bearer " + offered.removeprefix(KEY_SUBPROTOCOL).encode())
        # Whoever comes with a ticket alone is counted by address: each costs SQL a write, good or not.
        caller, refused = self._counted(given)
        self._check_host(given)
        self._check_origin(given)
        refuse_keys_in(query)
        ticket = parse_qs(query.decode("latin-1")).get("ticket", [""])[0]
        if ticket and self.needs_key and not given.authorization:
            caller = (await self._holder(ticket)).about(_project_in(query))
        else:
            caller = self._about(query, caller, refused)
        caller.require(READS)
        return caller

    async def ticket(self, caller: Caller) -> str:
        """Good for one socket within half a minute, in the caller's project, to read. Without keys nobody needs one,
        and an empty one is as good."""
        if not self.needs_key:
            return ""
        secret, now = secrets.token_hex(32), now_ms()
        row = TicketRow(keys.digest(secret), caller.key, caller.project, now + TICKET_SECONDS * 1000)
        await self._db.write(partial(keys.insert_ticket, row=row, now=now))
        return secret

    async def _holder(self, ticket: str) -> Caller:
        row = await self._db.write(partial(keys.take_ticket, hash_=keys.digest(ticket), now=now_ms()))
        if row is None:
            raise Unauthorized("this ticket was used, or is too old", hint="POST /tickets makes another")
        holder = self.keyring.caller_of(row.key_id)
        holder.standing.count(time.monotonic())
        return replace(holder, reach=row.project, scopes=frozenset({Scope.READ}), asked=None)

    def _check_host(self, given: Credentials) -> None:
        if self._names is None:
            return
        host = given.host.decode("latin-1")
        if _hostname(host) not in self._names:
            raise BadHost(
                f"this service has no key, so it answers on its own machine only, and {host!r} is no name of that",
                hint="use http://127.0.0.1, or set FOOTPLATE_API_KEY to listen elsewhere",
            )


def is_open(path: str) -> bool:
    return path in OPEN_PATHS or path.startswith(OPEN_PREFIX)


def subprotocol_of(offered: Sequence[str]) -> str | None:
    """What to accept a socket with: `footplate`, which says nothing, before the one that carries a key."""
    if SUBPROTOCOL in offered:
        return SUBPROTOCOL
    return next((one for one in offered if one.startswith(KEY_SUBPROTOCOL)), None)


def refuse_keys_in(query: bytes) -> None:
    """Raises InvalidQuery for a key in a URL, and for more parameters than any address takes."""
    if query.count(b"&") >= MOST_PARAMETERS:
        raise InvalidQuery([Problem("/query", "too_long", f"has more than {MOST_PARAMETERS} parameters")])
    for name, value in parse_qsl(query.decode("latin-1"), keep_blank_values=True):
        if name.lower() in KEY_NAMES or value.startswith(f"{MARK}_"):
            detail = "a key never goes into a URL: proxies, logs and histories keep URLs"
            hint = "send it as 'Authorization: Bearer <key>', or open a browser's socket with a ticket of POST /tickets"
            raise InvalidQuery([Problem(f"/query/{name}", "key_in_url", detail, hint)])


def _project_in(query: bytes) -> str | None:
    found = parse_qs(query.decode("latin-1"), keep_blank_values=True).get("project")
    if found is None:
        return None
    if not _PROJECT.fullmatch(found[0]):
        raise InvalidQuery([Problem("/query/project", "invalid_parameter", "is no name of a project")])
    return found[0]


def _hostname(host: str) -> str:
    """The name without its port: `[::1]:8080` is `::1`."""
    if host.startswith("["):
        return host[1:].partition("]")[0].lower()
    return host.partition(":")[0].lower()
