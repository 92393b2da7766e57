"""Sends one delivery, signed as Standard Webhooks requires: https://www.standardwebhooks.com.

    webhook-id          the delivery's id, the same at every try, by which a receiver detects repeats
    webhook-timestamp   the time of this try, in seconds, by which a receiver detects old requests
    webhook-signature   v1,<base64 of HMAC-SHA256 over "id.timestamp.body", with the part of the secret after whsec_>

While an old secret is still valid there are two signatures, separated by a space.

The address of the URL's host is checked when the webhook is made, and at each delivery. The host's name may resolve to
another machine a minute later. So a delivery connects to the address that was checked, and does not resolve the name
again.
"""

from __future__ import annotations

import asyncio
import hmac
import secrets
from base64 import b64decode, b64encode
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, partial
from typing import TYPE_CHECKING

from footplate.contract.outbound import Allowed, Refused, Target, addresses_of, require_allowed

if TYPE_CHECKING:
    import ssl

RESOLVE_SECONDS, CONNECT_SECONDS, TOTAL_SECONDS, BODY_SECONDS = 5.0, 5.0, 10.0, 2.0
ANSWER_BYTES = 4096
"""The most that is read of an answer."""
SECRET_MARK = "whsec_"
Resolve = Callable[[str, int], Awaitable[list[str]]]
# Own threads, because a name server that does not answer must not delay the check of control's lock.
_NAMES = ThreadPoolExecutor(8, thread_name_prefix="webhook-names")


@dataclass(frozen=True, slots=True)
class Answer:
    status: int | None
    """The HTTP status, or None if there was no answer."""
    body: bytes = b""
    error: str | None = None


def make_secret() -> str:
    """Returns a new secret of 256 random bits."""
    return SECRET_MARK + b64encode(secrets.token_bytes(32)).decode()


def signature(secret: str, message: str, seconds: int, body: bytes) -> str:
    key = b64decode(secret.removeprefix(SECRET_MARK))
    return "v1," + b64encode(hmac.digest(key, f"{message}.{seconds}.".encode() + body, "sha256")).decode()


def headers(secrets_: Sequence[str], message: str, seconds: int, body: bytes) -> dict[str, str]:
    return {
        "content-type": "application/json",
        "user-agent": "footplate-webhooks/1",
        "accept-encoding": "identity",
        "webhook-id": message,
        "webhook-timestamp": str(seconds),
        "webhook-signature": " ".join(signature(secret, message, seconds, body) for secret in secrets_),
    }


async def resolved(host: str, port: int) -> list[str]:
    """Returns every IP address of a host. Raises TimeoutError if the name server does not answer in time."""
    addresses = asyncio.get_running_loop().run_in_executor(_NAMES, addresses_of, host, port)
    return await asyncio.wait_for(addresses, RESOLVE_SECONDS)


async def aim(target: Target, allowed: Allowed, resolve: Resolve = resolved) -> str:
    """Returns the IP address to connect to. Raises Refused if any address of the URL's host is not allowed."""
    try:
        addresses = await resolve(target.host, target.port)
    except TimeoutError:
        raise Refused(f"names {target.host}, which could not be resolved within {RESOLVE_SECONDS:g} s") from None
    except (OSError, UnicodeError) as error:
        why = error.strerror if isinstance(error, OSError) else str(error)
        raise Refused(f"names {target.host}, which cannot be resolved: {why}") from error
    if not addresses:
        raise Refused(f"names {target.host}, which has no address")
    require_allowed(target, addresses, partial(allowed.covers, target.host))
    return addresses[0]


async def post(target: Target, address: str, fields: dict[str, str], body: bytes) -> Answer:
    """Sends a POST to this address, without redirects and proxies. The certificate must match the URL's host name."""
    # The client is imported here, and in a thread, because the import is slow and most services have no webhooks.
    trust = await asyncio.to_thread(_trust)
    import httpx2

    where = f"[{address}]" if ":" in address else address
    timeout = httpx2.Timeout(TOTAL_SECONDS, connect=CONNECT_SECONDS)
    # A client for each delivery, because a kept connection is reused by address, which two names may share.
    client = httpx2.AsyncClient(verify=trust, trust_env=False, follow_redirects=False, timeout=timeout)
    try:
        async with asyncio.timeout(TOTAL_SECONDS), client:
            request = client.build_request(
                "POST",
                f"{target.scheme}://{where}:{target.port}{target.path}",
                content=body,
                headers={**fields, "host": target.authority},
                extensions={"sni_hostname": target.host},
            )
            response = await client.send(request, stream=True)
            try:
                return Answer(response.status_code, await _beginning(response.aiter_raw()))
            finally:
                await response.aclose()
    except httpx2.ConnectTimeout:
        return Answer(None, error=f"no connection within {CONNECT_SECONDS:g} s")
    except (TimeoutError, httpx2.TimeoutException):
        return Answer(None, error=f"no answer within {TOTAL_SECONDS:g} s")
    except (httpx2.HTTPError, httpx2.InvalidURL, OSError) as error:
        return Answer(None, error=f"no answer: {error or type(error).__name__}")


async def _beginning(pieces: AsyncIterator[bytes]) -> bytes:
    """Returns the first bytes of an answer, which users see. The rest of the answer is not awaited."""
    import httpx2

    start = b""
    with suppress(httpx2.HTTPError, TimeoutError):
        async with asyncio.timeout(BODY_SECONDS):
            async for piece in pieces:
                start += piece
                if len(start) >= ANSWER_BYTES:
                    break
    return start[:ANSWER_BYTES]


@cache
def _trust() -> ssl.SSLContext:
    """Reads the certificate authorities that the machine trusts, once."""
    import httpx2

    return httpx2.create_ssl_context()
