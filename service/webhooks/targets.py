"""Checks the addresses of webhooks: the URL when the webhook is made, and the address of its host at each delivery.

The host's name may resolve to another machine a minute later. So a delivery connects to the address that was checked,
and does not resolve the name again.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor

from footplate.contract.outbound import Address, Allowed, Refused, Target, is_public, plain

RESOLVE_SECONDS = 5.0
Resolve = Callable[[str, int], Awaitable[list[str]]]
# Own threads, because a name server that does not answer must not delay the check of control's lock.
_NAMES = ThreadPoolExecutor(8, thread_name_prefix="webhook-names")


async def resolved(host: str, port: int) -> list[str]:
    """Returns every IP address of a host. A host may be a number, such as 2130706433 for 127.0.0.1."""
    ask = asyncio.get_running_loop().run_in_executor(_NAMES, _addresses, host, port)
    return await asyncio.wait_for(ask, RESOLVE_SECONDS)


def _addresses(host: str, port: int) -> list[str]:
    return [str(info[4][0]) for info in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)]


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
    for address in addresses:
        _check(target, plain(address), allowed)
    return addresses[0]


def _check(target: Target, address: Address, allowed: Allowed) -> None:
    if allowed.covers(target.host, address):
        return
    if not is_public(address):
        raise Refused(f"names {target.host}, which is {address}: not a public address")
    if target.scheme != "https":
        raise Refused("must begin with https://, because deliveries must not be readable on the way")
