"""Where a webhook may point: what it says is looked at when it is made, and its address each time that it is sent to.

A name that was good may mean another machine a minute later, so the address that was looked at is the one that is
connected to; nobody asks for the name again in between.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from urllib.parse import urlsplit

RESOLVE_SECONDS = 5.0
PORTS = {"http": 80, "https": 443}
Address = IPv4Address | IPv6Address
Resolve = Callable[[str, int], Awaitable[list[str]]]
# Threads of its own: a name server that does not answer must not hold up the look at control's lock.
_NAMES = ThreadPoolExecutor(8, thread_name_prefix="webhook-names")

_NOT_PUBLIC = [
    ip_network(one)
    for one in (
        "0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12", "192.0.0.0/24",
        "192.0.2.0/24", "192.88.99.0/24", "192.168.0.0/16", "198.18.0.0/15", "198.51.100.0/24", "203.0.113.0/24",
        "224.0.0.0/3",
        # A cloud's machine that tells its guests who they are, at an address that looks like any other.
        "168.63.129.16/32",
        "2001::/23", "2001:db8::/32", "2002::/16", "3fff::/20",
    )
]  # fmt: skip
"""This machine, private networks, what is between providers, multicast, tunnels that lead to any of these."""
_PUBLIC_V6 = IPv6Network("2000::/3")


class Refused(Exception):
    """Why nothing is sent there, in a sentence whose subject is the URL."""


@dataclass(frozen=True, slots=True)
class Target:
    """A URL, taken apart once: whoever connects reads it no second time, and differently."""

    scheme: str
    host: str
    port: int
    path: str
    """With its query."""

    @property
    def authority(self) -> str:
        name = f"[{self.host}]" if ":" in self.host else self.host
        return name if self.port == PORTS[self.scheme] else f"{name}:{self.port}"


@dataclass(frozen=True, slots=True)
class Allowed:
    """What the operator lets webhooks reach beside the public internet."""

    names: frozenset[str] = frozenset()
    networks: tuple[IPv4Network | IPv6Network, ...] = ()

    @classmethod
    def of(cls, text: str) -> Allowed:
        """Of FOOTPLATE_WEBHOOKS_ALLOW. Raises ValueError."""
        names, networks = set(), []
        for one in filter(None, (part.strip() for part in text.split(","))):
            try:
                networks.append(ip_network(one))
            except ValueError as error:
                if "/" in one or ":" in one or one.replace(".", "").isdigit():
                    raise ValueError(f"{one!r} is no network: {error}") from None
                names.add(one.lower())
        return cls(frozenset(names), tuple(networks))

    def covers(self, host: str, address: Address) -> bool:
        return host in self.names or any(address in network for network in self.networks)


def read_url(url: str) -> Target:
    """Raises Refused."""
    if not (url.isascii() and url.isprintable()) or " " in url or "\\" in url:
        raise Refused("may have printable ASCII characters only; other names are written xn--…")
    try:
        parts = urlsplit(url)
        host, port = (parts.hostname or "").rstrip("."), parts.port
    except ValueError as error:
        raise Refused(f"cannot be read: {error}") from error
    if parts.scheme not in PORTS:
        raise Refused("must begin with https:// (or http://, where the operator allows the host)")
    if not host:
        raise Refused("names no host")
    if "@" in parts.netloc:
        raise Refused("carries a name or password; what proves that a delivery is ours is its signature")
    if parts.fragment:
        raise Refused("has a fragment (#…), which is never sent")
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    return Target(parts.scheme, host, port or PORTS[parts.scheme], path)


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
        _check(target, _plain(one), allowed)
    return found[0]


def _check(target: Target, address: Address, allowed: Allowed) -> None:
    if allowed.covers(target.host, address):
        return
    if not is_public(address):
        raise Refused(f"names {target.host}, which is {address}: not a public address")
    if target.scheme != "https":
        raise Refused("must begin with https://: what is signed must not be read on the way")


def _plain(text: str) -> Address:
    """An IPv4 address that is written as an IPv6 one is the IPv4 address."""
    address = ip_address(text)
    return (address.ipv4_mapped or address) if isinstance(address, IPv6Address) else address


def is_public(address: Address) -> bool:
    if isinstance(address, IPv6Address) and address not in _PUBLIC_V6:
        return False
    return not any(address in network for network in _NOT_PUBLIC)
