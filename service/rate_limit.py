"""Limits the rate of requests: by key, and by address for requests without a valid key.

Each API process counts on its own, so n processes together accept up to n times a limit.

Keys cannot be guessed. But a request without a valid key still costs something: a hash, a write to SQL for a ticket, or
the checks of /readyz. So each address has a limit, too.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from ipaddress import IPv6Address, ip_address

from service.problems import TooManyRequests

BURST_SECONDS = 5.0
"""A key or address that was quiet may send the requests of this many seconds at once."""
MOST_REMEMBERED = 10_000
"""The most addresses that are counted. If there are more, the one that was quiet for the longest time is dropped."""
_NOBODY = "nowhere"


class Quota:
    """The limit for the requests of one key or address at this process, and for its open streams."""

    def __init__(self, rate: float = 0.0, most_open: int = 0, who: str = "this key") -> None:
        self._rate, self._most_open, self._who = rate, most_open, who
        self._tokens, self._counted_at = rate * BURST_SECONDS, time.monotonic()
        self._open: set[Callable[[], object]] = set()

    def count(self, now: float) -> None:
        """Counts a request. Raises TooManyRequests if the rate is exceeded. A rate of 0 has no limit."""
        if not self._rate:
            return
        tokens = self._tokens + (now - self._counted_at) * self._rate
        self._tokens, self._counted_at = min(tokens, self._rate * BURST_SECONDS) - 1.0, now
        if self._tokens < 0:
            self._tokens += 1.0
            seconds = (1.0 - self._tokens) / self._rate
            raise TooManyRequests(f"{self._who} sends more than {self._rate:g} requests a second", wait_seconds=seconds)

    def require_room(self) -> None:
        if self._most_open and len(self._open) >= self._most_open:
            raise TooManyRequests(f"this key has {self._most_open} streams open, which is the limit", wait_seconds=15)

    @contextmanager
    def holding(self, end: Callable[[], object]) -> Iterator[None]:
        """Counts an open stream. `end` is called if the key is deleted or expires meanwhile."""
        self._open.add(end)
        try:
            yield
        finally:
            self._open.discard(end)

    def end_all(self) -> None:
        for end in list(self._open):
            end()


class AddressLimits:
    def __init__(self, rate: float) -> None:
        self._rate = rate
        self._quotas: dict[str, Quota] = {}

    def count(self, address: str) -> None:
        """Counts a request of this address. Raises TooManyRequests if the rate is exceeded."""
        if not self._rate:
            return
        network = network_of(address)
        quota = self._quotas.pop(network, None) or Quota(self._rate, who="this address, without a valid key,")
        self._quotas[network] = quota
        if len(self._quotas) > MOST_REMEMBERED:
            del self._quotas[next(iter(self._quotas))]
        quota.count(time.monotonic())


def network_of(address: str) -> str:
    """Returns the network of an IPv6 address, because a user of IPv6 has 2**64 addresses. IPv4 is returned as it is."""
    if ":" not in address:
        return address or _NOBODY
    ip = ip_address(address.partition("%")[0])
    if not isinstance(ip, IPv6Address):
        return address
    return str(ip.ipv4_mapped or f"{int(ip) >> 64:x}")
