"""Checks each request's key, host and origin, and makes one-time tickets for browsers' websockets and downloads."""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from urllib.parse import parse_qsl

from footplate.contract.errors import Forbidden, Problem, Unauthorized
from service.callers import EVERYWHERE, NOBODY, READS, Caller, Scope
from service.keyring import Keyring
from service.problems import BadHost, HeadersTooLarge, InvalidQuery
from service.rate_limit import AddressLimits
from service.redaction import MARK
from service.settings import ServiceSettings
from service.store import keys
from service.store.database import Database
from service.store.row_types import TicketRow
from service.store.times import now_ms

OPEN_PATHS = frozenset({"/", "/livez", "/readyz", "/docs"})
"""The addresses that need no key, because they show nothing about jobs. The dashboard prompts its user for a key."""
OPEN_PREFIX = "/dashboard/"
SUBPROTOCOL = "footplate"
KEY_SUBPROTOCOL = "footplate.key."
"""The start of the subprotocol with which a browser sends its key, because it cannot send headers with a websocket."""
TICKET_SECONDS = 30
MOST_HEADERS, LONGEST_HEADER = 100, 8192
"""The most headers of a request, and the most bytes of a header's value, because parsing headers costs time."""
MOST_PARAMETERS = 50
"""The most parameters of a query. No route has half as many."""
SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})
KEY_NAMES = frozenset({"key", "api_key", "apikey", "api-key", "token", "access_token", "authorization"})
"""Query parameters in which a client may have put its key by mistake. They are refused with advice."""
LOCAL = Caller("", EVERYWHERE, frozenset({Scope.ADMIN}))
"""The caller of a service without keys, which only this machine can reach."""
_PROJECT = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")


class ForeignPage(Forbidden):
    """The error for a request from a page of another site. A websocket from there is refused before the handshake."""


@dataclass(slots=True)
class Credentials:
    """The headers of one request that identify its sender."""

    host: bytes
    origin: bytes
    authorization: bytes
    request_id: bytes
    address: str
    is_flood: bool
    """True if the request has too many headers, or a header that is too long."""

    @classmethod
    def of(cls, headers: Sequence[tuple[bytes, bytes]], client: tuple[str, int] | None) -> Credentials:
        by_name = dict(headers)
        return cls(
            host=by_name.get(b"host", b""),
            origin=by_name.get(b"origin", b""),
            authorization=by_name.get(b"authorization", b""),
            request_id=by_name.get(b"x-request-id", b""),
            address=client[0] if client else "",
            is_flood=len(headers) > MOST_HEADERS or any(len(value) > LONGEST_HEADER for _, value in headers),
        )


class Gatekeeper:
    """Checks each request and websocket. Returns its caller, or raises an error that says what is missing."""

    def __init__(self, settings: ServiceSettings, db: Database) -> None:
        self._db = db
        self.keyring = Keyring(settings, db)
        self._addresses = AddressLimits(settings.rate_per_address if self.keyring.is_in_force else 0)
        origins = (origin.strip() for origin in settings.allowed_origins.split(","))
        self._origins = frozenset(origin.rstrip("/") for origin in origins if origin)
        self._names = None if self.keyring.is_in_force else LOOPBACK_NAMES | {settings.host}

    def check_request(self, method: str, path: str, query: bytes, credentials: Credentials) -> Caller:
        """Checks a request and returns its caller. It is counted first, even if its query cannot be parsed."""
        refusal: Unauthorized | None = None
        caller = NOBODY
        if is_open(path):
            self._addresses.count(credentials.address)
        else:
            caller, refusal = self._counted(credentials)
        if credentials.is_flood:
            raise HeadersTooLarge(
                f"this request has more than {MOST_HEADERS} headers, or a header of more than {LONGEST_HEADER:,} bytes"
            )
        self._check_host(credentials)
        if method not in SAFE_METHODS:
            self._check_origin(credentials)
        if is_open(path):
            read_query(query)
            return NOBODY
        return _in_project(caller, read_query(query), refusal)

    def _counted(self, credentials: Credentials) -> tuple[Caller, Unauthorized | None]:
        """Counts a request. Returns its caller, and the error if it has no valid key. Raises TooManyRequests."""
        if not self.keyring.is_in_force:
            return LOCAL, None
        try:
            caller = self._bearer(credentials.authorization)
        except Unauthorized as refusal:
            self._addresses.count(credentials.address)
            return NOBODY, refusal
        caller.quota.count(time.monotonic())
        return caller, None

    def _bearer(self, authorization: bytes) -> Caller:
        if not authorization:
            raise Unauthorized("the request needs a key", hint="send it as 'Authorization: Bearer <key>'")
        scheme, _, key = authorization.partition(b" ")
        if scheme.lower() != b"bearer":
            raise Unauthorized(
                "the Authorization header has no bearer key", hint="send it as 'Authorization: Bearer <key>'"
            )
        return self.keyring.caller(key.strip())

    def _check_origin(self, credentials: Credentials) -> None:
        """Refuses pages of other sites, which could act for the user of the browser. Programs send no Origin."""
        if not credentials.origin:
            return
        origin, host = credentials.origin.decode("latin-1"), credentials.host.decode("latin-1")
        # The header is compared as text, because browsers send exactly the scheme and the host.
        if origin.rstrip("/") not in self._origins and origin.partition("://")[2].lower() != host.lower():
            hint = "if that page is yours, list its origin in FOOTPLATE_ALLOWED_ORIGINS"
            raise ForeignPage(f"a page from {origin!r} may not act on this service", hint=hint)

    async def check_socket(self, query: bytes, subprotocols: Sequence[str], credentials: Credentials) -> Caller:
        """Checks the key or ticket of a websocket and returns its caller. Browsers send a key as a subprotocol."""
        key_subprotocol = next((name for name in subprotocols if name.startswith(KEY_SUBPROTOCOL)), None)
        if key_subprotocol and self.keyring.is_in_force:
            key = key_subprotocol.removeprefix(KEY_SUBPROTOCOL).encode()
            credentials = replace(credentials, authorization=b"Bearer " + key)
        # A websocket with a ticket alone is counted by its address, because any ticket costs a write to SQL.
        caller, refusal = self._counted(credentials)
        self._check_host(credentials)
        self._check_origin(credentials)
        parameters = read_query(query)
        if (ticket := parameters.get("ticket")) and self.keyring.is_in_force and not credentials.authorization:
            caller, refusal = await self._holder(ticket), None
        caller = _in_project(caller, parameters, refusal)
        caller.require(READS)
        return caller

    async def check_link(self, query: bytes, refusal: Unauthorized) -> Caller:
        """Checks the ticket of a download that was refused for its missing key. Returns the ticket's caller.

        A browser's link sends a ticket, because it cannot send headers.
        """
        parameters = read_query(query)
        if not (ticket := parameters.get("ticket")):
            raise refusal
        return _in_project(await self._holder(ticket), parameters, None)

    async def ticket(self, caller: Caller) -> str:
        """Returns a ticket for one websocket or download within 30 s, to read the caller's project.

        A service without keys returns an empty ticket, because it needs none.
        """
        if not self.keyring.is_in_force:
            return ""
        secret, now = secrets.token_hex(32), now_ms()
        row = TicketRow(keys.digest(secret), caller.key, caller.project, now + TICKET_SECONDS * 1000)
        await self._db.write(keys.insert_ticket, row, now)
        return secret

    async def _holder(self, ticket: str) -> Caller:
        row = await self._db.write(keys.take_ticket, keys.digest(ticket), now_ms())
        if row is None:
            raise Unauthorized("this ticket has been used or has expired", hint="POST /tickets makes a new one")
        holder = self.keyring.caller_of(row.key_id)
        holder.quota.count(time.monotonic())
        return replace(holder, reach=row.project, scopes=frozenset({Scope.READ}), asked=None)

    def _check_host(self, credentials: Credentials) -> None:
        if self._names is None:
            return
        host = credentials.host.decode("latin-1")
        # Without its port: `[::1]:8080` is `::1`.
        name = host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0]
        if name.lower() not in self._names:
            raise BadHost(
                f"this service works without keys, so the Host header must name its own machine, and is {host!r}",
                hint="use http://127.0.0.1, or set FOOTPLATE_API_KEY to listen elsewhere",
            )


def is_open(path: str) -> bool:
    return path in OPEN_PATHS or path.startswith(OPEN_PREFIX)


def subprotocol_of(subprotocols: Sequence[str]) -> str | None:
    """Returns the subprotocol to accept. `footplate` is preferred, because the other possible one contains a key."""
    if SUBPROTOCOL in subprotocols:
        return SUBPROTOCOL
    return next((name for name in subprotocols if name.startswith(KEY_SUBPROTOCOL)), None)


def read_query(query: bytes) -> dict[str, str]:
    """Returns the first value of each parameter. Raises InvalidQuery for a key in a URL or too many parameters."""
    if not query:
        return {}
    if query.count(b"&") >= MOST_PARAMETERS:
        raise InvalidQuery([Problem("/query", "too_long", f"has more than {MOST_PARAMETERS} parameters")])
    parameters: dict[str, str] = {}
    for name, value in parse_qsl(query.decode("latin-1"), keep_blank_values=True):
        if name.lower() in KEY_NAMES or value.startswith(f"{MARK}_"):
            detail = "a key must not be in a URL, because proxies, logs and histories store URLs"
            hint = "send it as 'Authorization: Bearer <key>', or open a browser's socket with a ticket of POST /tickets"
            raise InvalidQuery([Problem(f"/query/{name}", "key_in_url", detail, hint)])
        parameters.setdefault(name, value)
    return parameters


def _in_project(caller: Caller, parameters: Mapping[str, str], refusal: Unauthorized | None) -> Caller:
    """Returns the caller in the project that the query names. Raises Unauthorized if the key is not valid."""
    if refusal is not None:
        raise refusal
    project = parameters.get("project")
    if project is not None and not _PROJECT.fullmatch(project):
        raise InvalidQuery([Problem("/query/project", "invalid_parameter", "is not the name of a project")])
    return caller.in_project(project)
