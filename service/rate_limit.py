"""Who asks without a good key: by their addresses, each only so often.

No key can be guessed; but each of these answers costs a hash, a write of SQL for a ticket, or all that /readyz looks
at, and nobody has to pay for it. Who sends a good key is not counted here, wherever from.
"""

from __future__ import annotations

import time
from ipaddress import IPv6Address, ip_address

from service.callers import Standing

MOST_REMEMBERED = 10_000
"""Addresses; the ones that were quiet the longest are forgotten."""
_NOBODY = "nowhere"


class Strangers:
    def __init__(self, rate: float) -> None:
        self._rate = rate
        self._known: dict[str, Standing] = {}

    def count(self, address: str) -> None:
        """Raises TooManyRequests."""
        if not self._rate:
            return
        whose = of_one_house(address)
        standing = self._known.pop(whose, None) or Standing(self._rate, who="this address, without a good key,")
        self._known[whose] = standing
        if len(self._known) > MOST_REMEMBERED:
            del self._known[next(iter(self._known))]
        standing.count(time.monotonic())


def of_one_house(address: str) -> str:
    """An IPv6 address by its network: whoever has one has 2**64."""
    if ":" not in address:
        return address or _NOBODY
    found = ip_address(address.partition("%")[0])
    if not isinstance(found, IPv6Address):
        return address
    return str(found.ipv4_mapped or f"{int(found) >> 64:x}")
