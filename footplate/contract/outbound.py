"""Checks the URLs of users to which our processes connect, such as webhooks, and each address of their hosts."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Annotated
from urllib.parse import urlsplit

from pydantic import AfterValidator

PORTS = {"http": 80, "https": 443}
Address = IPv4Address | IPv6Address

_NOT_PUBLIC = [
    ip_network(text)
    for text in (
        "0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12", "192.0.0.0/24",
        "192.0.2.0/24", "192.88.99.0/24", "192.168.0.0/16", "198.18.0.0/15", "198.51.100.0/24", "203.0.113.0/24",
        "224.0.0.0/3",
        # Azure serves the metadata of its virtual machines at this address, which looks like a public one.
        "168.63.129.16/32",
        "2001::/23", "2001:db8::/32", "2002::/16", "3fff::/20",
    )
]  # fmt: skip
"""Networks that are not public: this machine, private and shared networks, multicast, and tunnels to any of these."""
_PUBLIC_V6 = IPv6Network("2000::/3")


class Refused(Exception):
    """A URL is refused. The text is the reason, without the URL at its beginning: "names no host"."""


@dataclass(frozen=True, slots=True)
class Target:
    """A parsed URL. Requests use these fields, because a second parser could read the URL differently."""

    scheme: str
    host: str
    port: int
    path: str
    """The path with its query."""

    @property
    def authority(self) -> str:
        name = f"[{self.host}]" if ":" in self.host else self.host
        return name if self.port == PORTS[self.scheme] else f"{name}:{self.port}"


@dataclass(frozen=True, slots=True)
class Allowed:
    """The hosts and networks of an operator's setting. Connections to them are allowed although they are not public."""

    names: frozenset[str] = frozenset()
    networks: tuple[IPv4Network | IPv6Network, ...] = ()

    @classmethod
    def of(cls, text: str) -> Allowed:
        """Parses a list such as `hooks.internal, 10.1.0.0/16`. Raises ValueError."""
        names, networks = set(), []
        for entry in filter(None, (part.strip() for part in text.split(","))):
            try:
                networks.append(ip_network(entry))
            except ValueError as error:
                if "/" in entry or ":" in entry or entry.replace(".", "").isdigit():
                    raise ValueError(f"{entry!r} is not a network: {error}") from None
                names.add(entry.lower())
        return cls(frozenset(names), tuple(networks))

    def covers(self, host: str, address: Address) -> bool:
        return host in self.names or self.has(address)

    def has(self, address: Address) -> bool:
        return any(address in network for network in self.networks)

    def lists(self, host: str) -> bool:
        """Returns True if the list has this host name, or if the host is an address in one of the listed networks."""
        try:
            return self.has(plain(host))
        except ValueError:
            return host in self.names


def read_url(url: str) -> Target:
    """Parses a URL. Raises Refused with the reason."""
    if not (url.isascii() and url.isprintable()) or " " in url or "\\" in url:
        raise Refused("may have printable ASCII characters only: write other host names as xn--…")
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
        raise Refused("contains a user name or password, which everyone who sees the URL could read")
    if parts.fragment:
        raise Refused("has a fragment (#…), which is never sent")
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    return Target(parts.scheme, host, port or PORTS[parts.scheme], path)


def plain(text: str) -> Address:
    """Parses an IP address. An IPv4 address in IPv6 form (::ffff:10.0.0.1) becomes the IPv4 address."""
    address = ip_address(text)
    return (address.ipv4_mapped or address) if isinstance(address, IPv6Address) else address


def is_public(address: Address) -> bool:
    if isinstance(address, IPv6Address) and address not in _PUBLIC_V6:
        return False
    return not any(address in network for network in _NOT_PUBLIC)


def _networks(text: str) -> str:
    Allowed.of(text)
    return text


Networks = Annotated[str, AfterValidator(_networks)]
"""The type of a setting that lists hosts and networks, such as `hooks.internal, 10.1.0.0/16`."""


def addresses_of(host: str, port: int) -> list[str]:
    """Returns every IP address of a host. A host may be a number, such as 2130706433 for 127.0.0.1."""
    return [str(info[4][0]) for info in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)]


def require_allowed(target: Target, addresses: Iterable[str], is_allowed: Callable[[Address], bool]) -> None:
    """Raises Refused unless every address of the URL's host is allowed, or is public and reached by https."""
    for address in map(plain, addresses):
        if is_allowed(address):
            continue
        if not is_public(address):
            host_text = target.host if target.host == str(address) else f"{target.host}, which is {address}"
            raise Refused(f"names {host_text}: not a public address")
        if target.scheme != "https":
            raise Refused("must begin with https://, because others could read or change the data on its way")
