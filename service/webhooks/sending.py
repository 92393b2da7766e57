"""One delivery over the wire, signed as Standard Webhooks says: https://www.standardwebhooks.com.

webhook-id          the delivery's, the same at every try: a receiver keeps it to do nothing twice
webhook-timestamp   of this try, in seconds: a receiver refuses what is old
webhook-signature   v1,<base64 of HMAC-SHA256 over "id.timestamp.body" with what follows whsec_>; two of them, with a
                    space between, while a secret that was changed still counts
"""

from __future__ import annotations

import asyncio
import hmac
import secrets
from base64 import b64decode, b64encode
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from footplate.contract.outbound import Target

if TYPE_CHECKING:
    import ssl

CONNECT_SECONDS, TOTAL_SECONDS, BODY_SECONDS = 5.0, 10.0, 2.0
ANSWER_BYTES = 4096
"""What is read of an answer; the rest is left with who sends it."""
SECRET_MARK = "whsec_"


@dataclass(frozen=True, slots=True)
class Answer:
    status: int | None
    """None: there was no answer."""
    body: bytes = b""
    error: str | None = None


def make_secret() -> str:
    """256 random bits."""
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
        "webhook-signature": " ".join(signature(one, message, seconds, body) for one in secrets_),
    }


async def post(target: Target, address: str, given: dict[str, str], body: bytes) -> Answer:
    """To the very address; its certificate must be good for the name. No redirect is followed, no proxy is asked."""
    # In a thread, and not above: a service without webhooks never needs the client, which is long to import.
    trust = await asyncio.to_thread(_trust)
    import httpx2

    where = f"[{address}]" if ":" in address else address
    timeout = httpx2.Timeout(TOTAL_SECONDS, connect=CONNECT_SECONDS)
    # One for each: a connection that is kept is found by its address, and two names may share one.
    client = httpx2.AsyncClient(verify=trust, trust_env=False, follow_redirects=False, timeout=timeout)
    try:
        async with asyncio.timeout(TOTAL_SECONDS), client:
            request = client.build_request(
                "POST",
                f"{target.scheme}://{where}:{target.port}{target.path}",
                content=body,
                headers={**given, "host": target.authority},
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
    """For people. The status has said how it went, so what follows may come late, broken or never."""
    import httpx2

    found = b""
    with suppress(httpx2.HTTPError, TimeoutError):
        async with asyncio.timeout(BODY_SECONDS):
            async for piece in pieces:
                found += piece
                if len(found) >= ANSWER_BYTES:
                    break
    return found[:ANSWER_BYTES]


@cache
def _trust() -> ssl.SSLContext:
    """Read once: every authority that the machine trusts."""
    import httpx2

    return httpx2.create_ssl_context()
