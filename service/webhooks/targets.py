"""Where a webhook may point: what it says is looked at when it is made, and its address each time that it is sent to.

A name that was good may mean another machine a minute later, so the address that was looked at is the one that is
connected to; nobody asks for the name again in between.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor

from footplate.contract.outbound import Address, Allowed, Refused, Target, is_public, plain

RESOLVE_SECONDS = 5.0
Resolve = Callable[[str, int], Awaitable[list[str]]]
# Threads of its own: a name server that does not answer must not hold up the look at control's lock.
_NAMES = ThreadPoolExecutor(8, thread_name_prefix="webhook-names")


async def resolved(host: str, port: int) -> list[str]:
    """Every address of a name, or what a number stands for in any spelling: 2130706433 is 127.0.0.1."""
    ask = asyncio.get_running_loop().run_in_executor(_NAMES, _addresses, host, port)
    return await asyncio.wait_for(ask, RESOLVE_SECONDS)


def _addresses(host: str, port: int) -> list[str]:
    return [str(one[4][0]) for one in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)]


async def aim(target: Target, allowed: Allowed, resolve: Resolve = resolved) -> str:
    """The address to connect to. Raises Refused when any address of its name is one that may not be reached."""
    try:
        found = await resolve(target.host, target.port)
    except TimeoutError:
        raise Refused(f"names {target.host}, which no name server knows within {RESOLVE_SECONDS:g} s") from None
    except (OSError, UnicodeError) as error:
        why = error.strerror if isinstance(error, OSError) else str(error)
        raise Refused(f"names {target.host}, which cannot be resolved: {why}") from error
    if not found:
        raise Refused(f"names {target.host}, which has no address")
    for one in found:
        _check(target, plain(one), allowed)
    return found[0]


def _check(target: Target, address: Address, allowed: Allowed) -> None:
    if allowed.covers(target.host, address):
        return
    if not is_public(address):
        raise Refused(f"names {target.host}, which is {address}: not a public address")
    if target.scheme != "https":
        raise Refused("must begin with https://: what is signed must not be read on the way")
