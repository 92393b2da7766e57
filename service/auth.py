"""Who may ask: the key, one-time tickets for browsers' sockets, and where a request may come from."""

from __future__ import annotations

import hmac
import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from urllib.parse import parse_qs, urlsplit

from contract.errors import Forbidden, Unauthorized
from service.problems import BadHost
from service.settings import ServiceSettings

OPEN_PATHS = frozenset({"/", "/livez", "/readyz", "/docs"})
"""Answered without a key: what says nothing about jobs. The page asks its user for one."""
OPEN_PREFIX = "/pages/"
SUBPROTOCOL = "footplate"
KEY_SUBPROTOCOL = "footplate.key."
"""A browser cannot send headers with a websocket, but it can offer subprotocols: `footplate` and this with the key."""
TICKET_SECONDS = 30
SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})


@dataclass(slots=True)
class Credentials:
    """What the headers of one request say about who asks."""

    host: bytes = b""
    origin: bytes = b""
    authorization: bytes = b""
    request_id: bytes = b""

    @classmethod
    def of(cls, headers: Sequence[tuple[bytes, bytes]]) -> Credentials:
        found = cls()
        for name, value in headers:
            if name == b"host":
                found.host = value
            elif name == b"authorization":
                found.authorization = value
            elif name == b"origin":
                found.origin = value
            elif name == b"x-request-id":
                found.request_id = value
        return found


class Gatekeeper:
    """Raises what the request lacks; returns when it may pass."""

    def __init__(self, settings: ServiceSettings) -> None:
        self._key = settings.api_key.get_secret_value().encode() if settings.api_key else None
        self._origins = frozenset(one.strip().rstrip("/") for one in settings.allowed_origins.split(",") if one.strip())
        self._names = LOOPBACK_NAMES | {settings.host} if self._key is None else None
        self._tickets = Tickets(self._key) if self._key else None

    @property
    def needs_key(self) -> bool:
        return self._key is not None

    def check_request(self, method: str, path: str, given: Credentials) -> None:
        self._check_host(given)
        if given.origin and method not in SAFE_METHODS:
            self.check_origin(given)
        if self._key is None or path in OPEN_PATHS or path.startswith(OPEN_PREFIX):
            return
        scheme, _, key = given.authorization.partition(b" ")
        if scheme.lower() != b"bearer" or not hmac.compare_digest(key.strip(), self._key):
            raise _no_key(given.authorization)

    def check_origin(self, given: Credentials) -> None:
        """A page of another site must not act for the user whose browser shows it. Programs send no Origin."""
        self._check_host(given)
        if not given.origin:
            return
        origin, host = given.origin.decode("latin-1"), given.host.decode("latin-1")
        if origin.rstrip("/") not in self._origins and urlsplit(origin).netloc.lower() != host.lower():
            hint = "list it in FOOTPLATE_ALLOWED_ORIGINS if that page is yours"
            raise Forbidden(f"a page from {origin!r} may not act on this service", hint=hint)

    def check_socket(self, query: bytes, subprotocols: Sequence[str], given: Credentials) -> str | None:
        """The subprotocol to accept with."""
        offered = next((one for one in subprotocols if one.startswith(KEY_SUBPROTOCOL)), None)
        chosen = SUBPROTOCOL if SUBPROTOCOL in subprotocols else offered
        if self._key is None:
            return chosen
        if offered and hmac.compare_digest(offered.removeprefix(KEY_SUBPROTOCOL).encode(), self._key):
            return chosen
        ticket = parse_qs(query.decode("latin-1")).get("ticket", [""])[0]
        if ticket and self._tickets and self._tickets.redeem(ticket):
            return chosen
        self.check_request("GET", "", given)
        return chosen

    def ticket(self) -> str:
        """Good for one socket within half a minute. Without a key nobody needs one, and an empty one is as good."""
        return self._tickets.issue() if self._tickets else ""

    def _check_host(self, given: Credentials) -> None:
        if self._names is None:
            return
        host = given.host.decode("latin-1")
        if _hostname(host) not in self._names:
            raise BadHost(
                f"this service has no key, so it answers on its own machine only, and {host!r} is no name of that",
                hint="use http://127.0.0.1, or set FOOTPLATE_API_KEY to listen elsewhere",
            )


class Tickets:
    """Signed with the key, so that any API process takes them; each process takes one once."""

    def __init__(self, key: bytes) -> None:
        self._secret = sha256(b"footplate ticket" + key).digest()
        self._used: dict[str, int] = {}

    def issue(self, now: float | None = None) -> str:
        until = int((time.time() if now is None else now) + TICKET_SECONDS)
        text = f"{until:x}-{secrets.token_hex(16)}"
        return f"{text}-{self._sign(text)}"

    def redeem(self, ticket: str, now: float | None = None) -> bool:
        text, _, signature = ticket.rpartition("-")
        if not hmac.compare_digest(signature.encode(), self._sign(text).encode()):
            return False
        moment = time.time() if now is None else now
        self._used = {one: until for one, until in self._used.items() if until >= moment}
        until = int(text.partition("-")[0], 16)
        if until < moment or text in self._used:
            return False
        self._used[text] = until
        return True

    def _sign(self, text: str) -> str:
        return hmac.new(self._secret, text.encode(), sha256).hexdigest()


def _hostname(host: str) -> str:
    """The name without its port: `[::1]:8080` is `::1`."""
    if host.startswith("["):
        return host[1:].partition("]")[0].lower()
    return host.partition(":")[0].lower()


def _no_key(authorization: bytes) -> Unauthorized:
    if not authorization:
        return Unauthorized("this needs a key", hint="send it as 'Authorization: Bearer <key>'")
    return Unauthorized("this key is not one of ours", hint="send the right one as 'Authorization: Bearer <key>'")
