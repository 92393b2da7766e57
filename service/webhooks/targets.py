"""Checks the addresses of webhooks: the URL when the webhook is made, and the address of its host at each delivery.

The host's name may resolve to another machine a minute later. So a delivery connects to the address that was checked,
and does not resolve the name again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from footplate.contract.outbound import Allowed, Refused, Target, addresses_of, require_allowed

RESOLVE_SECONDS = 5.0
Resolve = Callable[[str, int], Awaitable[list[str]]]
# Own threads, because a name server that does not answer must not delay the check of control's lock.
_NAMES = ThreadPoolExecutor(8, thread_name_prefix="webhook-names")


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
